"""Takes over what a configuration file of Mosquitto says, and tells line by line what is not carried over and why.

Its rule: what decided who may enter or what they may do, and cannot be carried over, closes instead of opening.
"""
