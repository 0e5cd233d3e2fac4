// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/hosts/linux"
	"github.com/hyperfleet/hyperfleet/hosts/mac"
	"github.com/hyperfleet/hyperfleet/hosts/machine"
)

// lookEvery is how often a host is looked at while its push is followed.
const lookEvery = 500 * time.Millisecond

// errOneHost is a command line without a host.
var errOneHost = cli.Usagef("name one host: `kubectl get linuxmachines,scalewayapplesiliconmachines` lists them")

func newPush(opts *cli.Kube) *cobra.Command {
	var all, leave bool

	cmd := &cobra.Command{
		Use:   "push HOST",
		Short: "Have a host pushed to now, and follow it",
		Long: `Have the operator push to one host now: a wait after failures is cut short, a failure for good
is cleared, and what differs from its fleet's configuration is sent; with --all every part is.
The host waits for its turn as any other does: maxUnavailable, maintenance windows and a stopped
rollout of its fleet hold. A host that shows another key than it had is not pushed to.`,
		Example: "  hyperfleet hosts push rack-1 -n ci\n  hyperfleet hosts push rack-1 -n ci --all",
		Args:    oneArgument(errOneHost),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := cli.Bounded(cmd, commandTimeout)
			defer stop()

			src, err := connect(opts)
			if err != nil {
				return fmt.Errorf("hosts push: %w", err)
			}

			host, fleet, err := src.host(ctx, args[0])
			if err == nil {
				err = src.askPush(ctx, host, fleet, all)
			}

			if err == nil && leave {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "host %s/%s is pushed to when its turn comes\n", src.namespace, host.GetName())

				return err
			}

			if err == nil {
				err = src.follow(ctx, cmd.OutOrStdout(), host)
			}

			if err != nil {
				return fmt.Errorf("hosts push: %w", err)
			}

			return nil
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "push every part, also those that the host is known to have")
	cmd.Flags().BoolVar(&leave, "no-wait", false, "do not wait for the end of the push")

	return cmd
}

// host finds a host of any kind by its name, and the name of its fleet.
func (s *source) host(ctx context.Context, name string) (host machine.Object, fleet string, err error) {
	for _, kind := range []machine.Catalog{&linux.Kind{}, &mac.Kind{}} {
		found := kind.New()
		err := s.client.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, found)

		switch {
		case err == nil && host != nil:
			return nil, "", fmt.Errorf("two hosts of namespace %s are called %s, one of each kind: rename one", s.namespace, name)
		case err == nil:
			host, fleet = found, kind.FleetName(found)
		case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		default:
			return nil, "", fmt.Errorf("get host %s in namespace %s: %w", name, s.namespace, err)
		}
	}

	if host == nil {
		return nil, "", fmt.Errorf("there is no host %s in namespace %s: "+
			"`kubectl get linuxmachines,scalewayapplesiliconmachines -n %[2]s` lists them", name, s.namespace)
	}

	return host, fleet, nil
}

// askPush changes the host's status so that the operator's next look at it pushes. It is done
// again where the operator wrote meanwhile.
func (s *source) askPush(ctx context.Context, host machine.Object, name string, all bool) error {
	fleet := &infrav1.HostFleet{}
	if err := s.client.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, fleet); err != nil {
		return fmt.Errorf("get fleet %s in namespace %s: %w", name, s.namespace, err)
	}

	if fleet.Spec.Paused {
		return fmt.Errorf("fleet %s is paused: `hyperfleet hosts resume %[1]s -n %s` lets it go on", name, s.namespace)
	}

	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := s.client.Get(ctx, client.ObjectKeyFromObject(host), host); err != nil {
			return err
		}

		base, ok := host.DeepCopyObject().(machine.Object)
		if !ok {
			return fmt.Errorf("copy host: %T is no host", host)
		}

		if err := pushAgain(host.Host(), all); err != nil {
			return err
		}

		return s.client.Status().Patch(ctx, host, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
	})
	if err != nil {
		return fmt.Errorf("ask for a push to host %s: %w", host.GetName(), err)
	}

	return nil
}

// pushAgain makes a host due for a push. A push that runs is left alone: it is followed.
func pushAgain(status *infrav1.HostStatus, all bool) error {
	switch {
	case status.FailureReason == infrav1.FailureHostKeyChanged:
		return fmt.Errorf("%s: if the host was installed anew, correct spec.sshHostKey or clear status.sshHostKey, "+
			"and status.failureReason", strings.TrimSuffix(status.FailureMessage, "."))
	case status.Push != nil && all:
		return fmt.Errorf("%s runs at the host since %s: ask again when it is over",
			status.Push.What, status.Push.Started.UTC().Format(time.RFC3339))
	case status.Push != nil:
		return nil
	}

	status.FailureReason, status.FailureMessage = "", ""
	status.UpdateAttempts, status.BootstrapAttempts, status.ContactAttempts = 0, 0, 0
	status.HostConfigHash = ""

	if all {
		status.Parts = nil
	}

	return nil
}

// follow prints what the host waits for until the push has ended, one way or the other.
func (s *source) follow(ctx context.Context, out io.Writer, host machine.Object) error {
	var said string

	began := time.Now()

	for {
		if err := s.client.Get(ctx, client.ObjectKeyFromObject(host), host); err != nil {
			return fmt.Errorf("get host %s: %w", host.GetName(), err)
		}

		status := host.Host()
		if now := waitsFor(status); now != "" && now != said {
			said = now
			fmt.Fprintf(out, "%s  %s\n", time.Now().Format(time.TimeOnly), now)
		}

		switch {
		case status.FailureReason != "":
			return fmt.Errorf("host %s has failed: %s: %s", host.GetName(), status.FailureReason, status.FailureMessage)
		case status.UpdateAttempts > 0 || status.BootstrapAttempts > 0:
			return fmt.Errorf("host %s refused configuration %.12s; the operator tries it again: %s",
				host.GetName(), status.FailedHostConfigHash, said)
		case status.ContactAttempts > 0:
			return fmt.Errorf("host %s can't be reached; the operator tries it again: %s: %s",
				host.GetName(), status.ContactReason, status.ContactMessage)
		case status.HostConfigHash != "" && status.Push == nil:
			_, err := fmt.Fprintf(out, "host %s has configuration %.12s, after %s\n", host.GetName(), status.HostConfigHash,
				time.Since(began).Round(time.Second))

			return err
		}

		select {
		case <-time.After(lookEvery):
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("host %s was not pushed to within %s, and may be later: %s", host.GetName(), commandTimeout, said)
			}

			return ctx.Err()
		}
	}
}

// waitsFor is the first of the host's conditions that is not as it should be, in words.
func waitsFor(status *infrav1.HostStatus) string {
	for _, kind := range []string{
		infrav1.ConditionFleetFound, infrav1.ConditionProvisioned, infrav1.ConditionHostKeyPinned,
		infrav1.ConditionBootstrapped, infrav1.ConditionConverged,
	} {
		if c := meta.FindStatusCondition(status.Conditions, kind); c != nil && c.Status != metav1.ConditionTrue {
			return fmt.Sprintf("%s: %s: %s", c.Type, c.Reason, c.Message)
		}
	}

	return ""
}
