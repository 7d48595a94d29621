"""What tests share: plans of spec files, the command in a folder, processes, files of specs written by a test."""
