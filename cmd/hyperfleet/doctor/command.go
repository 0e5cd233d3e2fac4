// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/utils/clock"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

const (
	// timeout bounds all that the command asks of the API server.
	timeout = 2 * time.Minute
	// defaultWaiting is longer than a machine takes from its claim to its job.
	defaultWaiting = 10 * time.Minute
)

// options are the flags.
type options struct {
	cli.Kube

	operator string
	waiting  time.Duration
	output   string
}

// New makes the command.
func New() *cobra.Command {
	var opts options

	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look over the installation: what is wrong, why, and what fixes it",
		Long: `Look over what the API server has of HyperFleet: whether the kinds and roles of each area are
installed as this program knows them, whether an operator runs each area that has objects, and
which objects wait for a person, wait for long, or are not looked at by anybody. The operator
writes to each object what it last found: a hypervisor that does not answer, a token without a
privilege, a template without an agent. That is gathered here; nothing outside of the API
server is asked, and nothing is changed.

The exit code is 0 if there is no problem, warnings or not; 1 if there is one, or if the API
server does not answer; 2 if the command line is invalid.`,
		Example: "  hyperfleet doctor\n  hyperfleet doctor -n ci --waiting 3m --output json",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("doctor: it takes no argument: --namespace narrows it down")
			}

			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.validate(); err != nil {
				return fmt.Errorf("doctor: %w", err)
			}

			return run(cmd, opts)
		},
	}
	opts.AddFlags(cmd.Flags(), "the objects")
	cmd.Flags().Lookup("namespace").Usage = "only objects of this namespace; default: all"
	cmd.Flags().StringVar(&opts.operator, "operator-namespace", config.Default().Namespace, "namespace that the operator runs in")
	cmd.Flags().DurationVar(&opts.waiting, "waiting", defaultWaiting, "how long an object may wait, or be on its way out")
	cmd.Flags().StringVar(&opts.output, "output", cli.OutputTable, "table, for people, or json, for programs")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usage(err) })

	return cmd
}

func (o *options) validate() error {
	if o.waiting <= 0 {
		return cli.Usagef("--waiting %s: give a time above 0, such as %s", o.waiting, defaultWaiting)
	}

	return cli.CheckOutput(o.output)
}

func run(cmd *cobra.Command, opts options) error {
	ctx, stop := cli.Bounded(cmd, timeout)
	defer stop()

	cluster, err := opts.Connect(apiextensionsv1.AddToScheme, rbacv1.AddToScheme, coordinationv1.AddToScheme)
	if err != nil {
		return fmt.Errorf("doctor: %w", err)
	}

	asked, err := discovery.NewDiscoveryClientForConfig(cluster.Config)
	if err != nil {
		return fmt.Errorf("doctor: make client of the API server: %w", err)
	}

	version, err := asked.ServerVersion()
	if err != nil {
		return fmt.Errorf("doctor: ask the API server at %s for its version: %w", cluster.Config.Host, err)
	}

	d := &doctor{
		client: cluster.Client, now: clock.RealClock{}.Now(), namespace: opts.Namespace, operator: opts.operator, waiting: opts.waiting,
	}
	d.report.APIServer = version.GitVersion

	if err := d.look(ctx); err != nil {
		return fmt.Errorf("doctor: %w", err)
	}

	if err := d.report.print(cmd.OutOrStdout(), opts.output); err != nil {
		return fmt.Errorf("doctor: %w", err)
	}

	if d.report.Problems > 0 {
		return cli.Failed()
	}

	return nil
}
