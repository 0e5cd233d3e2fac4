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
	"github.com/hyperfleet/hyperfleet/kit/httpbound"
)

// commandTimeout bounds a command.
const commandTimeout = 10 * time.Minute

// New makes the command and those below it.
func New() *cobra.Command {
	var opts cli.Kube

	cmd := &cobra.Command{
		Use:   "hosts",
		Short: "Look at what would be pushed to hosts, push to one now, and pause or resume their fleets",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	opts.AddFlags(cmd.PersistentFlags(), "the hosts")
	cmd.AddCommand(newDiff(&opts), newPush(&opts), newPause(&opts), newResume(&opts))

	return cmd
}

// source is where objects are read and changed.
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
		query      query
		file, form string
	)

	cmd := &cobra.Command{
		Use:   "diff [HOST]",
		Short: "Tell what would be pushed to which host, part by part",
		Long: `Tell what the operator would push to which host, part by part: the configuration that it is
given, and the files that the configuration names, are compared with what each host got
last. Nothing is pushed, and no host is asked, unless --probe asks them which parts are as
they were left. Run it where the operator's files are, such as in its pod.`,
		Example: "  hyperfleet hosts diff --config operator.yaml -n ci --fleet racks\n" +
			"  hyperfleet hosts diff --config operator.yaml -n ci rack-1 --probe --output json",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				query.host = args[0]
			}

			if err := cli.CheckOutput(form); err != nil {
				return fmt.Errorf("hosts diff: %w", err)
			}

			ctx, stop := cli.Bounded(cmd, commandTimeout)
			defer stop()

			src, err := connect(opts)
			if err != nil {
				return fmt.Errorf("hosts diff: %w", err)
			}

			area, err := areaOf(file)
			if err != nil {
				return fmt.Errorf("hosts diff: %w", err)
			}

			found, err := src.diff(ctx, area, query)
			if err != nil {
				return fmt.Errorf("hosts diff: %w", err)
			}

			return write(cmd.OutOrStdout(), found, form)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&file, "config", "", "the operator's configuration; default: HYPERFLEET_CONFIG")
	flags.StringVar(&query.fleet, "fleet", "", "only hosts of this fleet")
	flags.BoolVar(&query.probe, "probe", false, "ask the hosts, over SSH, which parts they have lost")
	flags.StringVar(&form, "output", cli.OutputTable, "table, for people, or json, for programs")

	return cmd
}

// areaOf reads the operator's configuration, as the operator does.
func areaOf(file string) (*hosts.Area, error) {
	flags := pflag.NewFlagSet("operator", pflag.ContinueOnError)
	spec := operator.Spec()

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

	reach, err := httpbound.NewReach(config.Runners.PlatformURLs, config.Runners.PlatformNetworks)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}

	return &hosts.Area{Config: config.Hosts, Clock: clock.RealClock{}, Reach: reach}, nil
}

func newPause(opts *cli.Kube) *cobra.Command {
	return fleetCommand(opts, "pause FLEET", "Keep anything from being pushed to the hosts of a fleet",
		"Pushes that run go on to their end.",
		func(spec *infrav1.HostFleetSpec) string {
			spec.Paused = true

			return "paused"
		})
}

func newResume(opts *cli.Kube) *cobra.Command {
	return fleetCommand(opts, "resume FLEET", "Let a fleet go on that was paused or stopped",
		"A configuration that was stopped because hosts refused it goes on, and what failed so far does not\n"+
			"count any more. Hosts that have failed for good stay so until their failureReason is cleared.",
		func(spec *infrav1.HostFleetSpec) string {
			spec.Paused, spec.ResumedAt = false, new(metav1.NewTime(clock.RealClock{}.Now()))

			return "resumed"
		})
}

// oneArgument refuses a command line without the one argument that the error asks for.
func oneArgument(missing error) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return missing
		}

		return nil
	}
}

var errOneFleet = errors.New("name one fleet: `kubectl get hostfleets` lists them")

// fleetCommand is a command that changes the spec of one fleet.
func fleetCommand(opts *cli.Kube, use, short, long string, change func(*infrav1.HostFleetSpec) string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Long: short + ".\n\n" + long,
		Args: oneArgument(errOneFleet),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := cli.Bounded(cmd, commandTimeout)
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
			said := change(&fleet.Spec)

			if err := src.client.Patch(ctx, fleet, client.MergeFrom(base)); err != nil {
				return fmt.Errorf("hosts %s: change fleet %s: %w", cmd.Name(), args[0], err)
			}

			_, err = fmt.Fprintf(cmd.OutOrStdout(), "fleet %s/%s is %s\n", src.namespace, fleet.Name, said)

			return err
		},
	}
}
