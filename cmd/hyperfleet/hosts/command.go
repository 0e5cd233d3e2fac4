// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/operator"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/hosts"
)

// commandTimeout limits the duration of each command.
const commandTimeout = 10 * time.Minute

// New returns the command `hyperfleet hosts` with its subcommands.
func New() *cobra.Command {
	var opts cli.Kube

	cmd := &cobra.Command{
		Use:   "hosts",
		Short: "Compare hosts with their configuration, push to a host, and pause or resume a fleet",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	opts.AddKubeFlags(cmd.PersistentFlags(), "namespace of the hosts; default: the namespace of the context")
	cmd.AddCommand(newDiff(&opts), newPush(&opts), newPause(&opts), newResume(&opts))

	return cmd
}

// source reads and changes the objects of one namespace.
type source struct {
	client    client.Client
	namespace string
}

func connect(opts *cli.Kube) (*source, error) {
	cluster, err := opts.Connect(infrav1.AddToScheme)
	if err != nil {
		return nil, err
	}

	return &source{client: cluster.Client, namespace: cluster.Namespace}, nil
}

func newDiff(opts *cli.Kube) *cobra.Command {
	var (
		query  query
		file   string
		output cli.Output
	)

	cmd := &cobra.Command{
		Use:   "diff [HOST]",
		Short: "Show what the operator would push to each host, part by part",
		Long: `Show what the operator would push to each host, part by part. The command reads the operator's
configuration and the files that the configuration names, and compares them with the last push to
each host. It pushes nothing, and it contacts the hosts only with --probe: then it asks them over SSH
which parts no longer match the last push.

Run the command where the operator's files are, such as in the operator's pod.`,
		Example: "  hyperfleet hosts diff --config operator.yaml -n ci --fleet racks\n" +
			"  hyperfleet hosts diff --config operator.yaml -n ci rack-1 --probe -o json",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				query.host = args[0]
			}

			ctx, stop := cli.WithTimeout(cmd, commandTimeout)
			defer stop()

			src, err := connect(opts)
			if err != nil {
				return fmt.Errorf("hosts diff: %w", err)
			}

			area, err := loadArea(file)
			if err != nil {
				return fmt.Errorf("hosts diff: %w", err)
			}

			diffs, err := src.diff(ctx, area, query)
			if err != nil {
				return fmt.Errorf("hosts diff: %w", err)
			}

			return output.Print(cmd.OutOrStdout(), newList(diffs))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&file, "config", "", "file with the operator's configuration; default: HYPERFLEET_CONFIG")
	flags.StringVar(&query.fleet, "fleet", "", "only hosts of this fleet")
	flags.BoolVar(&query.shouldProbe, "probe", false, "ask the hosts over SSH which parts no longer match the last push")
	output.AddFlag(cmd, cli.OutputTable, cli.OutputWide, cli.OutputName, cli.OutputJSON, cli.OutputYAML)

	return cmd
}

// loadArea reads the operator's configuration in the same way as the operator, and returns the hosts area
// with it. If file is empty, the environment variable HYPERFLEET_CONFIG names the file.
func loadArea(file string) (*hosts.Area, error) {
	flags := pflag.NewFlagSet("operator", pflag.ContinueOnError)
	spec := operator.NewConfigSpec()

	if err := spec.AddFlags(flags); err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}

	if file != "" {
		if err := flags.Set("config", file); err != nil {
			return nil, fmt.Errorf("read configuration: %w", err)
		}
	}

	config, err := spec.Load(flags)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}

	egress, err := operator.NewEgressPolicy(config.Runners)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}

	return &hosts.Area{Config: config.Hosts, Clock: clock.RealClock{}, Egress: egress}, nil
}

func newPause(opts *cli.Kube) *cobra.Command {
	return newFleetCommand(opts, "pause FLEET", "Stop pushing to the hosts of a fleet",
		"Pushes that are in progress continue until they end.",
		func(spec *infrav1.HostFleetSpec) string {
			spec.Paused = true

			return "paused"
		})
}

func newResume(opts *cli.Kube) *cobra.Command {
	return newFleetCommand(opts, "resume FLEET", "Resume a fleet that was paused, or whose rollout was stopped",
		"If a rollout was stopped because the update of hosts failed, it continues, and the earlier failures no\n"+
			"longer count. Hosts that have failed terminally stay failed until you clear their failureReason.",
		func(spec *infrav1.HostFleetSpec) string {
			spec.Paused, spec.ResumedAt = false, new(metav1.NewTime(clock.RealClock{}.Now()))

			return "resumed"
		})
}

// requireOneArgument returns the given error if the command line does not have exactly one argument.
func requireOneArgument(err error) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return err
		}

		return nil
	}
}

var errOneFleet = errors.New("give the name of one fleet: run `kubectl get hostfleets` to list the fleets")

// newFleetCommand returns a command that changes the spec of one fleet. change returns the new state of the
// fleet as a word, which the command prints.
func newFleetCommand(opts *cli.Kube, use, short, long string, change func(*infrav1.HostFleetSpec) string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Long: short + ".\n\n" + long,
		Args: requireOneArgument(errOneFleet),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := cli.WithTimeout(cmd, commandTimeout)
			defer stop()

			src, err := connect(opts)
			if err != nil {
				return fmt.Errorf("hosts %s: %w", cmd.Name(), err)
			}

			fleet := &infrav1.HostFleet{}
			if err := src.client.Get(ctx, client.ObjectKey{Namespace: src.namespace, Name: args[0]}, fleet); err != nil {
				return fmt.Errorf("hosts %s: get fleet %s in namespace %s: %w", cmd.Name(), args[0], src.namespace, err)
			}

			base := fleet.DeepCopy()
			state := change(&fleet.Spec)

			if err := src.client.Patch(ctx, fleet, client.MergeFrom(base)); err != nil {
				return fmt.Errorf("hosts %s: update fleet %s in namespace %s: %w", cmd.Name(), args[0], src.namespace, err)
			}

			_, err = fmt.Fprintf(cmd.OutOrStdout(), "fleet %s/%s is %s\n", src.namespace, fleet.Name, state)

			return err
		},
	}
}
