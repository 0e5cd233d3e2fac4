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

// pollInterval is the time between two reads of a host while its push is followed.
const pollInterval = 500 * time.Millisecond

// errOneHost reports a command line that does not name exactly one host.
var errOneHost = cli.Usagef("give the name of one host: " +
	"run `kubectl get linuxmachines,scalewayapplesiliconmachines` to list the hosts")

func newPush(opts *cli.Kube) *cobra.Command {
	var all, noWait bool

	cmd := &cobra.Command{
		Use:   "push HOST",
		Short: "Push the configuration to one host now, and follow the push",
		Long: `Make the operator push to one host now. The command ends the back-off after failures, clears a
terminal failure, and has the operator push the parts that differ from the configuration of the
fleet, or every part with --all.

The limits of the fleet still apply: the push waits for maxUnavailable, maintenance windows and a
stopped rollout. The command fails for a host whose SSH host key has changed.`,
		Example: "  hyperfleet hosts push rack-1 -n ci\n  hyperfleet hosts push rack-1 -n ci --all",
		Args:    requireOneArgument(errOneHost),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := cli.WithTimeout(cmd, commandTimeout)
			defer stop()

			src, err := connect(opts)
			if err != nil {
				return fmt.Errorf("hosts push: %w", err)
			}

			host, fleet, err := src.findHost(ctx, args[0])
			if err == nil {
				err = src.requestPush(ctx, host, fleet, all)
			}

			if err == nil && noWait {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "requested a push to host %s/%s: the operator pushes when the fleet permits it\n",
					src.namespace, host.GetName())

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
	cmd.Flags().BoolVar(&all, "all", false, "push every part, including the parts that the host already has")
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "do not wait until the push has ended")

	return cmd
}

// findHost returns the host that the argument names, and the name of its fleet. It returns an error if hosts of
// both kinds have that name.
func (s *source) findHost(ctx context.Context, argument string) (host machine.Object, fleet string, err error) {
	for _, kind := range []machine.Catalog{&linux.Kind{}, &mac.Kind{}} {
		name, isOfKind := nameOfKind(kind, argument)
		if !isOfKind {
			continue
		}

		named := kind.New()
		err := s.client.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, named)

		switch {
		case err == nil && host != nil:
			return nil, "", fmt.Errorf("namespace %s has two hosts named %s: put the kind before the name, such as %s",
				s.namespace, name, objectName(kind.Name(), name))
		case err == nil:
			host, fleet = named, kind.FleetName(named)
		case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		default:
			return nil, "", fmt.Errorf("get host %s in namespace %s: %w", name, s.namespace, err)
		}
	}

	if host == nil {
		return nil, "", fmt.Errorf("host %s not found in namespace %s: "+
			"run `kubectl get linuxmachines,scalewayapplesiliconmachines -n %[2]s` to list the hosts", argument, s.namespace)
	}

	return host, fleet, nil
}

// requestPush changes the status of the host so that the operator pushes at its next reconcile. It retries if
// the operator updates the host at the same time. It returns an error if the fleet is paused.
func (s *source) requestPush(ctx context.Context, host machine.Object, fleetName string, allParts bool) error {
	fleet := &infrav1.HostFleet{}
	if err := s.client.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: fleetName}, fleet); err != nil {
		return fmt.Errorf("get fleet %s in namespace %s: %w", fleetName, s.namespace, err)
	}

	if fleet.Spec.Paused {
		return fmt.Errorf("fleet %s is paused: run `hyperfleet hosts resume %[1]s -n %s` to resume it", fleetName, s.namespace)
	}

	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := s.client.Get(ctx, client.ObjectKeyFromObject(host), host); err != nil {
			return err
		}

		base, ok := host.DeepCopyObject().(machine.Object)
		if !ok {
			return fmt.Errorf("copy host: %T is not a host", host)
		}

		if err := resetStatus(host.Host(), allParts); err != nil {
			return err
		}

		return s.client.Status().Patch(ctx, host, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
	})
	if err != nil {
		return fmt.Errorf("request a push to host %s: %w", host.GetName(), err)
	}

	return nil
}

// resetStatus changes the status so that the operator pushes to the host: it clears the failures and the hash
// of the applied configuration. With allParts it also clears the parts. If a push is in progress, it changes
// nothing, and with allParts it returns an error. It returns an error if the host key has changed, because a
// person has to confirm the new key.
func resetStatus(status *infrav1.HostStatus, allParts bool) error {
	switch {
	case status.FailureReason == infrav1.FailureHostKeyChanged:
		return fmt.Errorf("%s: if the host was reinstalled, correct spec.sshHostKey or clear status.sshHostKey, "+
			"and clear status.failureReason", strings.TrimSuffix(status.FailureMessage, "."))
	case status.Push != nil && allParts:
		return fmt.Errorf("%s has been running on the host since %s: run the command again when it has ended",
			status.Push.What, status.Push.Started.UTC().Format(time.RFC3339))
	case status.Push != nil:
		return nil
	}

	status.FailureReason, status.FailureMessage = "", ""
	status.UpdateAttempts, status.BootstrapAttempts, status.ContactAttempts = 0, 0, 0
	status.HostConfigHash = ""

	if allParts {
		status.Parts = nil
	}

	return nil
}

// follow prints what the host waits for until the push has ended. It returns an error if the push failed, or
// if ctx ends first.
func (s *source) follow(ctx context.Context, out io.Writer, host machine.Object) error {
	var printed string

	start := time.Now()

	for {
		if err := s.client.Get(ctx, client.ObjectKeyFromObject(host), host); err != nil {
			return fmt.Errorf("get host %s: %w", host.GetName(), err)
		}

		status := host.Host()
		if state := formatPendingCondition(status); state != "" && state != printed {
			printed = state
			fmt.Fprintf(out, "%s  %s\n", time.Now().Format(time.TimeOnly), cli.SanitizeLine(state))
		}

		switch {
		case status.FailureReason != "":
			return fmt.Errorf("host %s has failed: %s: %s", host.GetName(), status.FailureReason, status.FailureMessage)
		case status.UpdateAttempts > 0 || status.BootstrapAttempts > 0:
			return fmt.Errorf("update host %s to configuration %.12s failed, and the operator retries: %s",
				host.GetName(), status.FailedHostConfigHash, printed)
		case status.ContactAttempts > 0:
			return fmt.Errorf("host %s is unreachable, and the operator retries: %s: %s",
				host.GetName(), status.ContactReason, status.ContactMessage)
		case status.HostConfigHash != "" && status.Push == nil:
			_, err := fmt.Fprintf(out, "host %s has configuration %.12s, after %s\n", host.GetName(), status.HostConfigHash,
				time.Since(start).Round(time.Second))

			return err
		}

		select {
		case <-time.After(pollInterval):
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("the push to host %s did not end within %s; the operator continues: %s",
					host.GetName(), commandTimeout, printed)
			}

			return ctx.Err()
		}
	}
}

// formatPendingCondition returns the first condition of the host that is not True, as text. The conditions
// are in the order in which the operator fulfills them. It returns "" if none is pending.
func formatPendingCondition(status *infrav1.HostStatus) string {
	for _, conditionType := range []string{
		infrav1.ConditionFleetFound, infrav1.ConditionProvisioned, infrav1.ConditionHostKeyPinned,
		infrav1.ConditionBootstrapped, infrav1.ConditionConverged,
	} {
		if c := meta.FindStatusCondition(status.Conditions, conditionType); c != nil && c.Status != metav1.ConditionTrue {
			return fmt.Sprintf("%s: %s: %s", c.Type, c.Reason, c.Message)
		}
	}

	return ""
}
