package main

// ours is the product's order: that of fleet.Route.
func ours() *policy { return &policy{name: oursName} }
