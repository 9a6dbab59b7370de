"""Networks, the distributions they parametrise, and the policies they make."""
