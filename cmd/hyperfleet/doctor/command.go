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
	// timeout limits the time that all checks together may take.
	timeout = 2 * time.Minute
	// defaultMaxWait is longer than the time from the creation of a claim until its machine runs a job.
	defaultMaxWait = 10 * time.Minute
)

// options holds the flags of the command.
type options struct {
	cli.Kube

	operatorNamespace string
	maxWait           time.Duration
	output            cli.Output
	// template is the HypervisorMachineTemplate to test. assumeYes skips the confirmation.
	template     string
	assumeYes    bool
	trialTimeout time.Duration
}

// New returns the command `hyperfleet doctor`.
func New() *cobra.Command {
	var opts options

	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the installation, and show each problem with its reason and its fix",
		Long: `Check the HyperFleet installation of a cluster:

  - the CRDs and RBAC roles of each area match this version of hyperfleet;
  - an operator runs for each area that has objects;
  - no object needs a person, waits for longer than --waiting, or has not been reconciled.

The operator records in the status of each object what it found, such as an unreachable hypervisor,
a token without a privilege, or a template without a guest agent. The command collects these
conditions, and changes no object.

The command also opens a connection to each cache that a template names, without sending data. If
runner logs are kept in a log store and you have the permission to read its keys, the command writes
a small object to the store with the operator's keys, reads the object, and deletes it.

With --try, the command then asks for confirmation and creates one machine from a
HypervisorMachineTemplate. It creates a MachineClaim with the workload of a RunnerPool that uses the
template, and with a label that no job asks for. It shows how long the machine took to be placed,
cloned, powered on, and to send its first report, and what was missing. At the end it deletes the
machine.

The exit code is 0 if there are no problems, even if there are warnings; 1 if there is a problem, if
the API server does not respond, or if you do not confirm --try; 2 if the command line is invalid.`,
		Example: "  hyperfleet doctor\n  hyperfleet doctor -n ci --waiting 3m -o json\n  hyperfleet doctor -n ci --try linux",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("doctor: the command takes no arguments: use --namespace to check the objects of one namespace")
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
	opts.AddKubeFlags(cmd.Flags(), "namespace of the objects to check; default: all namespaces")
	cmd.Flags().StringVar(&opts.operatorNamespace, "operator-namespace", config.Default().Namespace,
		"namespace that the operator runs in")
	cmd.Flags().DurationVar(&opts.maxWait, "waiting", defaultMaxWait,
		"how long an object may be not ready, or in deletion, before it is a problem")
	cmd.Flags().StringVar(
		&opts.template,
		"try",
		"",
		"HypervisorMachineTemplate in the namespace to test by creating, and then deleting, one machine",
	)
	cmd.Flags().BoolVar(&opts.assumeYes, "yes", false, "with --try: create the machine without confirmation")
	cmd.Flags().DurationVar(
		&opts.trialTimeout,
		"try-timeout",
		defaultTrialTimeout,
		"with --try: how long the machine may take until its first report",
	)
	opts.output.AddFlag(cmd, cli.OutputTable, cli.OutputJSON, cli.OutputYAML)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usage(err) })

	return cmd
}

func (o *options) validate() error {
	if o.maxWait <= 0 {
		return cli.Usagef("--waiting %s: give a duration above 0, such as %s", o.maxWait, defaultMaxWait)
	}

	switch {
	case o.template == "" && o.assumeYes:
		return cli.Usagef("--yes has an effect only with --try: give a template with --try")
	case o.trialTimeout <= 0:
		return cli.Usagef("--try-timeout %s: give a duration above 0, such as %s", o.trialTimeout, defaultTrialTimeout)
	case o.template != "" && !o.output.IsForPeople() && !o.assumeYes:
		return cli.Usagef("--try cannot ask for confirmation with --output %s: add --yes", &o.output)
	}

	return nil
}

func run(cmd *cobra.Command, opts options) error {
	ctx, stop := cli.WithTimeout(cmd, timeout)
	defer stop()

	cluster, err := opts.Connect(apiextensionsv1.AddToScheme, rbacv1.AddToScheme, coordinationv1.AddToScheme, v1alpha1.AddToScheme,
		corev1.AddToScheme, appsv1.AddToScheme, networkingv1.AddToScheme)
	if err != nil {
		return fmt.Errorf("doctor: %w", err)
	}

	discoveryClient, err := discovery.NewDiscoveryClientForConfig(cluster.Config)
	if err != nil {
		return fmt.Errorf("doctor: create discovery client: %w", err)
	}

	version, err := discoveryClient.ServerVersion()
	if err != nil {
		return fmt.Errorf("doctor: get the version of the API server at %s: %w", cluster.Config.Host, err)
	}

	d := &doctor{
		client:            cluster.Client,
		now:               clock.RealClock{}.Now(),
		namespace:         opts.Namespace,
		operatorNamespace: opts.operatorNamespace,
		maxWait:           opts.maxWait,
	}
	d.report.APIServer = version.GitVersion

	if err := d.checkAll(ctx); err != nil {
		return fmt.Errorf("doctor: %w", err)
	}

	return opts.reportAndTry(cmd, cluster, &d.report)
}

// reportAndTry prints the report, and tests the template that --try names. The table shows the report first, and
// then the progress of the test machine. JSON and YAML output is one object, which is printed after the test.
func (o *options) reportAndTry(cmd *cobra.Command, cluster *cli.Cluster, report *Report) error {
	out, progress := cmd.OutOrStdout(), io.Discard
	content := cli.Content{Data: report, Print: report.print}

	if o.output.IsForPeople() {
		progress = out

		if err := o.output.Print(out, content); err != nil {
			return fmt.Errorf("doctor: %w", err)
		}
	}

	if o.template != "" {
		if err := o.runTrial(cmd, cluster, report, progress); err != nil {
			return fmt.Errorf("doctor: test template %s: %w", o.template, err)
		}
	}

	if !o.output.IsForPeople() {
		if err := o.output.Print(out, content); err != nil {
			return fmt.Errorf("doctor: %w", err)
		}
	}

	if report.Problems > 0 {
		return cli.Failed()
	}

	return nil
}

// runTrial creates the test machine after a confirmation, and adds the result to the report. It counts a
// machine that did not report, or that was not deleted, as a problem.
func (o *options) runTrial(cmd *cobra.Command, cluster *cli.Cluster, report *Report, progress io.Writer) error {
	ctx, stop := cli.WithTimeout(cmd, o.trialTimeout+deletionTimeout)
	defer stop()

	t := &trial{client: cluster.Client, progress: progress, timeout: o.trialTimeout, Trial: Trial{
		Namespace: cluster.Namespace, Template: o.template, Phases: []TrialPhase{},
	}}

	claim, template, err := t.prepareClaim(ctx)
	if err != nil {
		return err
	}

	fmt.Fprintln(progress)

	if !o.assumeYes {
		if err := confirm(cmd.InOrStdin(), progress, formatQuestion(claim, template)); err != nil {
			return err
		}
	}

	err = t.run(ctx, claim)
	report.Trial = &t.Trial

	if !t.Alive || !t.Removed {
		report.Problems++
	}

	return err
}
