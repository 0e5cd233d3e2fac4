// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	hfv1 "github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

// timeout bounds all that the command asks of the API server.
const timeout = 2 * time.Minute

// options are the command's flags.
type options struct {
	cli.Kube

	all    bool
	output string
}

func (o *options) validate(args []string) error {
	if err := cli.CheckOutput(o.output); err != nil {
		return err
	}

	if o.all && o.Namespace != "" {
		return cli.Usagef("--namespace and --all-namespaces exclude each other: give one of them")
	}

	if len(args) > 1 {
		return cli.Usagef("give one pool, or none for a list of them")
	}

	return nil
}

// New makes the command.
func New() *cobra.Command {
	var opts options

	cmd := &cobra.Command{
		Use:   "addresses [POOL]",
		Short: "Tell who has which address of a pool, since when, and what is free",
		Long: `Without POOL, list the pools of static addresses: how many addresses each has, and how many
are in use. With POOL, the name of a KubevirtNodePool or of a HypervisorMachineTemplate, list
its addresses: who has each and since when, what is free, and who waits. A kind before the
name chooses between two of one name: kubevirtnodepool/NAME, hypervisormachinetemplate/NAME.

It reads the pools and machines of all namespaces, as they share networks, and therefore takes
the right to list them. The exit code is 0; 1 if there is no such pool, or the API server does
not answer; 2 if the command line is invalid.`,
		Example: "  hyperfleet addresses -A\n  hyperfleet addresses workers -n ci --output json",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := opts.validate(args); err != nil {
				return cli.Usagef("addresses: %w", err)
			}

			ctx, stop := cli.Bounded(cmd, timeout)
			defer stop()

			cluster, err := opts.Connect(hfv1.AddToScheme, infrav1.AddToScheme)
			if err != nil {
				return fmt.Errorf("addresses: %w", err)
			}

			chosen := query{namespace: cluster.Namespace}
			if opts.all {
				chosen.namespace = ""
			}

			if len(args) > 0 {
				chosen.pool = args[0]
			}

			found, err := read(ctx, cluster.Client, chosen)
			if err != nil {
				return fmt.Errorf("addresses: %w", err)
			}

			p := printer{cmd.OutOrStdout(), clock.RealClock{}.Now()}

			switch {
			case opts.output == cli.OutputJSON:
				return cli.JSON(p.out, map[string]any{"pools": found})
			case chosen.pool == "":
				return p.list(found)
			default:
				return p.details(found)
			}
		},
	}
	flags := cmd.Flags()
	opts.AddFlags(flags, "the pools")
	flags.BoolVarP(&opts.all, "all-namespaces", "A", false, "pools of all namespaces")
	flags.StringVar(&opts.output, "output", cli.OutputTable, "table, for people, or json, for programs")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usage(err) })

	return cmd
}
