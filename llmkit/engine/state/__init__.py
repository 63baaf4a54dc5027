"""What sequences hold, saved to a file and loaded again, in llmkit's form and in llama.cpp's."""
