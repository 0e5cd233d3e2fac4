// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/utils/clock"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
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
	// template to try, and without a question.
	template   string
	yes        bool
	tryTimeout time.Duration
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
privilege, a template without an agent. That is gathered here, and nothing is changed. Outside
of the API server a connection is opened to the caches that templates name, and nothing sent; and
if logs of runners are kept in a store, a small object is written there, read and deleted, with
the operator's keys, if you may read them.

With --try it then makes one machine from a HypervisorMachineTemplate, after a question: by a
MachineClaim, with the workload of a RunnerPool of that template, and a label that no job asks
for. It tells how long the machine took to be placed, made, powered on and to give its first
sign of life, what was missing, and removes it.

The exit code is 0 if there is no problem, warnings or not; 1 if there is one, if the API
server does not answer, or if the answer to the question is not yes; 2 if the command line is invalid.`,
		Example: "  hyperfleet doctor\n  hyperfleet doctor -n ci --waiting 3m --output json\n  hyperfleet doctor -n ci --try linux",
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
	cmd.Flags().StringVar(
		&opts.template,
		"try",
		"",
		"HypervisorMachineTemplate of the namespace to make one machine from, which is removed again",
	)
	cmd.Flags().BoolVar(&opts.yes, "yes", false, "with --try: make the machine without a question")
	cmd.Flags().DurationVar(
		&opts.tryTimeout,
		"try-timeout",
		defaultTry,
		"with --try: how long the machine may take to its first sign of life",
	)
	cmd.Flags().StringVar(&opts.output, "output", cli.OutputTable, "table, for people, or json, for programs")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usage(err) })

	return cmd
}

func (o *options) validate() error {
	if o.waiting <= 0 {
		return cli.Usagef("--waiting %s: give a time above 0, such as %s", o.waiting, defaultWaiting)
	}

	switch {
	case o.template == "" && o.yes:
		return cli.Usagef("--yes answers the question of --try: name a template by --try")
	case o.tryTimeout <= 0:
		return cli.Usagef("--try-timeout %s: give a time above 0, such as %s", o.tryTimeout, defaultTry)
	case o.template != "" && o.output == cli.OutputJSON && !o.yes:
		return cli.Usagef("--try with --output json asks no question: give --yes")
	}

	return cli.CheckOutput(o.output)
}

func run(cmd *cobra.Command, opts options) error {
	ctx, stop := cli.Bounded(cmd, timeout)
	defer stop()

	cluster, err := opts.Connect(apiextensionsv1.AddToScheme, rbacv1.AddToScheme, coordinationv1.AddToScheme, v1alpha1.AddToScheme,
		corev1.AddToScheme, appsv1.AddToScheme, networkingv1.AddToScheme)
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
		client:    cluster.Client,
		now:       clock.RealClock{}.Now(),
		namespace: opts.Namespace,
		operator:  opts.operator,
		waiting:   opts.waiting,
	}
	d.report.APIServer = version.GitVersion

	if err := d.look(ctx); err != nil {
		return fmt.Errorf("doctor: %w", err)
	}

	return opts.finish(cmd, cluster, &d.report)
}

// finish prints what was found, and tries a template if one is named: what is said of the
// machine comes as it happens, or within the one object of JSON.
func (o *options) finish(cmd *cobra.Command, cluster *cli.Cluster, report *Report) error {
	out, told := cmd.OutOrStdout(), cmd.OutOrStdout()
	if o.output == cli.OutputJSON {
		told = io.Discard
	} else if err := report.print(out, o.output); err != nil {
		return fmt.Errorf("doctor: %w", err)
	}

	if o.template != "" {
		if err := o.try(cmd, cluster, report, told); err != nil {
			return fmt.Errorf("doctor: try template %s: %w", o.template, err)
		}
	}

	if o.output == cli.OutputJSON {
		if err := report.print(out, o.output); err != nil {
			return fmt.Errorf("doctor: %w", err)
		}
	}

	if report.Problems > 0 {
		return cli.Failed()
	}

	return nil
}

// try makes the machine and notes what became of it.
func (o *options) try(cmd *cobra.Command, cluster *cli.Cluster, report *Report, told io.Writer) error {
	ctx, stop := cli.Bounded(cmd, o.tryTimeout+removal)
	defer stop()

	t := &trial{client: cluster.Client, told: told, timeout: o.tryTimeout, Trial: Trial{
		Namespace: cluster.Namespace, Template: o.template, Phases: []TrialPhase{},
	}}

	claim, template, err := t.prepare(ctx)
	if err != nil {
		return err
	}

	fmt.Fprintln(told)

	if !o.yes {
		if err := ask(cmd.InOrStdin(), told, question(claim, template)); err != nil {
			return err
		}
	}

	err = t.run(ctx, claim)
	report.Try = &t.Trial

	if !t.Alive || !t.Removed {
		report.Problems++
	}

	return err
}
