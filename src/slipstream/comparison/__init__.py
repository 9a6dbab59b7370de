"""The same task under the trainers of several libraries, each in a process of its own."""
