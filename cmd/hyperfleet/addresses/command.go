// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	hfv1 "github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

// timeout limits the time that all requests of the command to the API server may take.
const timeout = 2 * time.Minute

// options holds the flags of the command.
type options struct {
	cli.Kube

	allNamespaces bool
	output        cli.Output
}

func (o *options) validate(args []string) error {
	if o.allNamespaces && o.Namespace != "" {
		return cli.Usagef("--namespace and --all-namespaces are mutually exclusive: use one of them")
	}

	if len(args) > 1 {
		return cli.Usagef("too many arguments: give one pool, or none to list all pools")
	}

	return nil
}

// New returns the command `hyperfleet addresses`.
func New() *cobra.Command {
	var opts options

	cmd := &cobra.Command{
		Use:   "addresses [POOL]",
		Short: "Show which machine uses which address of a pool, and which addresses are free",
		Long: `Without POOL, list the pools of static addresses, with the number of addresses in each pool and the
number that is in use. With POOL, the name of a KubevirtNodePool or of a HypervisorMachineTemplate,
list the addresses of that pool: the machine that uses each address and since when, the free
addresses, and the machines that wait for an address. If both kinds have an object of that name,
put the kind before the name: kubevirtnodepool/NAME or hypervisormachinetemplate/NAME.

Pools of different namespaces can share a network. The command therefore reads the pools and machines
of all namespaces, and needs the permission to list them.

The exit code is 0 on success; 1 if the pool does not exist or the API server does not respond; 2 if
the command line is invalid.`,
		Example: "  hyperfleet addresses -A -o wide\n  hyperfleet addresses workers -n ci -o json",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := opts.validate(args); err != nil {
				return cli.Usagef("addresses: %w", err)
			}

			ctx, stop := cli.WithTimeout(cmd, timeout)
			defer stop()

			cluster, err := opts.Connect(hfv1.AddToScheme, infrav1.AddToScheme)
			if err != nil {
				return fmt.Errorf("addresses: %w", err)
			}

			filter := query{namespace: cluster.Namespace}
			if opts.allNamespaces {
				filter.namespace = ""
			}

			if len(args) > 0 {
				filter.pool = args[0]
			}

			pools, err := readPools(ctx, cluster.Client, filter)
			if err != nil {
				return fmt.Errorf("addresses: %w", err)
			}

			content := newList(pools)
			if filter.pool != "" {
				content.Print = func(out io.Writer, _ bool) error {
					return printer{out, clock.RealClock{}.Now()}.printDetails(pools)
				}
			}

			return opts.output.Print(cmd.OutOrStdout(), content)
		},
	}
	flags := cmd.Flags()
	opts.AddKubeFlags(flags, "namespace of the pools; default: the namespace of the context")
	flags.BoolVarP(&opts.allNamespaces, "all-namespaces", "A", false, "show the pools of all namespaces")
	opts.output.AddFlag(cmd, cli.OutputTable, cli.OutputWide, cli.OutputName, cli.OutputJSON, cli.OutputYAML)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usage(err) })

	return cmd
}
