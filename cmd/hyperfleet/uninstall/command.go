// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package uninstall

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/utils/clock"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

const (
	// defaultTimeout is longer than most jobs.
	defaultTimeout = time.Hour
	// lookEvery is how often it is looked whether machines are gone.
	lookEvery = time.Second
)

// options are the flags.
type options struct {
	cli.Kube

	yes      bool
	keepCRDs bool
	drain    bool
	timeout  time.Duration
}

// New makes the command.
func New() *cobra.Command {
	var opts options

	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Drain all machines, wait until they are gone, and remove the installation",
		Long: `Remove HyperFleet from a cluster in the order that leaves no machine behind. Without --yes it
only says what there is. With it:

  1. every RunnerPool is paused, and every MachineClaim deleted: idle machines go at once, busy
     ones when their jobs are over;
  2. it waits until the operator has removed them all, with their runners and ISO images;
  3. pools, templates, jobs and HypervisorClusters are deleted;
  4. the operator's Deployments, roles and kinds are removed. The namespace stays, for the
     Secrets in it are yours.

What does not go within --timeout is listed, and the operator stays, which alone can remove it:
run the command again. Objects of other areas stand for real hosts and clusters; it does not
begin while there are any.

With --drain it ends after the second step: all that is left is as it was, but for the pools, which
stay paused. The Helm chart does so before it is uninstalled.

The exit code is 0 if all is removed, or nothing was asked for; 1 if something is left; 2 if the
command line is invalid.`,
		Example: "  hyperfleet uninstall\n  hyperfleet uninstall --yes --timeout 3h\n" +
			"  hyperfleet uninstall --drain --yes",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("uninstall: it takes no argument")
			}

			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.timeout <= 0 {
				return cli.Usagef("uninstall: --timeout %s: give a time above 0, such as %s", opts.timeout, defaultTimeout)
			}

			if opts.drain && opts.keepCRDs {
				return cli.Usagef("uninstall: --drain leaves the kinds in any case: leave out --keep-crds")
			}

			return run(cmd, opts)
		},
	}
	opts.AddFlags(cmd.Flags(), "the operator")
	cmd.Flags().Lookup("namespace").Usage = "namespace that the operator runs in; default: " + config.Default().Namespace
	cmd.Flags().BoolVar(&opts.yes, "yes", false, "do it; without, it is only said what there is")
	cmd.Flags().BoolVar(&opts.keepCRDs, "keep-crds", false, "leave the kinds (CustomResourceDefinitions) in the cluster")
	cmd.Flags().BoolVar(&opts.drain, "drain", false, "pause the pools and remove the machines, and nothing else")
	cmd.Flags().DurationVar(&opts.timeout, "timeout", defaultTimeout, "how long machines may take to go, busy ones included")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usage(err) })

	return cmd
}

func run(cmd *cobra.Command, opts options) error {
	ctx, stop := cli.Bounded(cmd, opts.timeout)
	defer stop()

	cluster, err := opts.Connect(v1alpha1.AddToScheme, apiextensionsv1.AddToScheme, rbacv1.AddToScheme, appsv1.AddToScheme,
		admissionv1.AddToScheme)
	if err != nil {
		return fmt.Errorf("uninstall: %w", err)
	}

	u := &uninstaller{
		client: cluster.Client, namespace: config.Default().Namespace, out: cmd.OutOrStdout(), clock: clock.RealClock{},
		keepCRDs: opts.keepCRDs, drainOnly: opts.drain,
	}
	if opts.Namespace != "" {
		u.namespace = opts.Namespace
	}

	there, err := u.look(ctx)
	if err != nil {
		return fmt.Errorf("uninstall: %w", err)
	}

	u.print(there)

	if !opts.yes {
		_, _ = fmt.Fprintln(u.out, "\nNothing was changed. Give --yes to remove all of this.")

		return nil
	}

	if opts.drain {
		err = u.machinesAlone(ctx)
	} else {
		err = u.all(ctx, there)
	}

	if err != nil {
		return fmt.Errorf("uninstall: %w", err)
	}

	return nil
}
