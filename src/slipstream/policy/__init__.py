"""Networks, distributions over actions, and the policies made of them."""
