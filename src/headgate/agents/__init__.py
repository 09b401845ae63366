"""What programs that act for a user may ask of Headgate, over the Model Context Protocol."""
