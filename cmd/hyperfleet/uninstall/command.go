// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package uninstall

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/utils/clock"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

const (
	// defaultTimeout is longer than most jobs run.
	defaultTimeout = time.Hour
	// pollInterval is the time between two checks whether objects still exist.
	pollInterval = time.Second
)

// options holds the flags of the command.
type options struct {
	cli.Kube

	assumeYes bool
	keepCRDs  bool
	drainOnly bool
	timeout   time.Duration
	output    cli.Output
}

// New returns the command `hyperfleet uninstall`.
func New() *cobra.Command {
	var opts options

	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Drain all machines, wait until they are deleted, and delete the installation",
		Long: `Delete HyperFleet from a cluster in an order that leaves no machine behind. Without --yes, the command
only shows the objects that exist. With --yes, it:

  1. pauses every RunnerPool, and deletes every MachineClaim. Busy machines first finish their jobs;
  2. waits until the operator has deleted all machines, with their runners and ISO images;
  3. deletes the pools, templates, jobs and HypervisorClusters;
  4. deletes the operator's Deployments, RBAC roles and CRDs, but not the namespace with your Secrets, and
     removes the operator's finalizers from Secrets.

If objects still exist after --timeout, the command lists them. It then keeps the operator, because
only the operator can delete the objects, and you can run the command again. The command does not
start while there are objects of other areas, because they represent real hosts and clusters.

With --drain, the command stops after step 2. It changes nothing else, and the pools stay paused. The
Helm chart runs the command with --drain before it is uninstalled.

The exit code is 0 if everything was deleted, or without --yes; 1 if objects still exist; 2 if the
command line is invalid.`,
		Example: "  hyperfleet uninstall\n  hyperfleet uninstall -o yaml\n  hyperfleet uninstall --yes --timeout 3h\n" +
			"  hyperfleet uninstall --drain --yes",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("uninstall: the command takes no arguments")
			}

			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.validate(); err != nil {
				return fmt.Errorf("uninstall: %w", err)
			}

			return run(cmd, opts)
		},
	}
	opts.AddKubeFlags(cmd.Flags(), "namespace that the operator runs in; default: "+config.Default().Namespace)
	cmd.Flags().BoolVar(&opts.assumeYes, "yes", false, "make the changes; otherwise the command only shows what exists")
	cmd.Flags().BoolVar(&opts.keepCRDs, "keep-crds", false, "keep the CRDs")
	cmd.Flags().BoolVar(&opts.drainOnly, "drain", false, "only pause the pools and delete the machines")
	cmd.Flags().DurationVar(&opts.timeout, "timeout", defaultTimeout,
		"how long the command may take, including the time for the jobs of busy machines")
	opts.output.AddFlag(cmd, cli.OutputText, cli.OutputJSON, cli.OutputYAML)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usage(err) })

	return cmd
}

func (o *options) validate() error {
	switch {
	case o.timeout <= 0:
		return cli.Usagef("--timeout %s: give a duration above 0, such as %s", o.timeout, defaultTimeout)
	case o.drainOnly && o.keepCRDs:
		return cli.Usagef("--drain always keeps the CRDs: remove --keep-crds")
	case o.assumeYes && !o.output.IsForPeople():
		return cli.Usagef("--output %s prints what exists: remove --yes", &o.output)
	}

	return nil
}

func run(cmd *cobra.Command, opts options) error {
	ctx, stop := cli.WithTimeout(cmd, opts.timeout)
	defer stop()

	cluster, err := opts.Connect(v1alpha1.AddToScheme, apiextensionsv1.AddToScheme, rbacv1.AddToScheme, appsv1.AddToScheme,
		corev1.AddToScheme, admissionv1.AddToScheme)
	if err != nil {
		return fmt.Errorf("uninstall: %w", err)
	}

	u := &uninstaller{
		client: cluster.Client, namespace: config.Default().Namespace, out: cmd.OutOrStdout(), clock: clock.RealClock{},
		keepCRDs: opts.keepCRDs, drainOnly: opts.drainOnly,
	}
	if opts.Namespace != "" {
		u.namespace = opts.Namespace
	}

	existing, err := u.takeInventory(ctx)
	if err != nil {
		return fmt.Errorf("uninstall: %w", err)
	}

	err = opts.output.Print(u.out, cli.Content{Data: existing, Print: func(out io.Writer, _ bool) error {
		_, err := io.WriteString(out, u.formatInventory(existing))

		return err
	}})

	switch {
	case err != nil:
	case opts.assumeYes && opts.drainOnly:
		err = u.drainMachines(ctx)
	case opts.assumeYes:
		err = u.uninstallAll(ctx, existing)
	case opts.output.IsForPeople():
		_, err = fmt.Fprintln(u.out, "\nNothing was changed. Use --yes to delete all of this.")
	}

	if err != nil {
		return fmt.Errorf("uninstall: %w", err)
	}

	return nil
}
