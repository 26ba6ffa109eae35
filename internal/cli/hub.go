package cli

import "github.com/spf13/cobra"

func (a *app) hub() *cobra.Command   { return &cobra.Command{Use: "hub"} }
func (a *app) serve() *cobra.Command { return &cobra.Command{Use: "serve"} }
func (a *app) dev() *cobra.Command   { return &cobra.Command{Use: "dev"} }
