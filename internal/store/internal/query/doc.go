// Package query is the store's SQL as Go functions, written by sqlc from
// ../../queries and ../../migrations. Only internal/store knows it.
package query
