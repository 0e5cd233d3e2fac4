// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machinetemplate

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/workload"
)

// Time limits of an old runner. GitHub sends no jobs to a runner that was not updated within 30 days after a new
// release (https://docs.github.com/actions/reference/runners/self-hosted-runners).
const (
	runnerDeadline = 30 * 24 * time.Hour
	// runnerWarning is how long before the deadline the condition RunnerCurrent is False.
	runnerWarning = 10 * 24 * time.Hour
)

// needsRelease reports whether the template asks for the newest release of the runner, which its machines then install.
func (s *scope) needsRelease() bool {
	config := s.template.Spec.Bootstrap.Config

	return config != nil && config.GitHub != nil && config.GitHub.Runner != nil &&
		config.GitHub.Runner.Version == v1alpha1.RunnerVersionLatest
}

// findRelease records the newest release of the runner in the status. While the platform does not name the release, a
// release that was found before is used.
func findRelease(ctx context.Context, s *scope, provider workload.Provider, program guest.Runner) step.Result {
	finder, ok := provider.(workload.ReleaseFinder)
	if !ok {
		return step.Done()
	}

	release, err := finder.FindRelease(ctx, program.OS, program.Arch)
	status := s.template.Status.Runner

	switch {
	case err != nil && status == nil && s.needsRelease():
		return connect.NewErrorResult(err, retryAfter, workload.ReasonReleaseUnknown)
	case err != nil && status == nil:
		return step.Done()
	case err == nil && status == nil:
		status = &v1alpha1.RunnerRelease{Since: metav1.NewTime(s.Clock.Now())}
	case err == nil && status.Version != release.Version && !status.IsOutdated():
		status.Since = metav1.NewTime(s.Clock.Now())
	}

	if err == nil {
		status.Version, status.DownloadURL, status.SHA256 = release.Version, release.URL, release.SHA256
	}

	s.template.Status.Runner = status

	if status.MachineVersion, err = s.findMachineVersion(ctx); err != nil {
		return step.Fail(err)
	}

	return step.Done()
}

// findMachineVersion returns the release of the runner in the newest machine of the template that has reported one,
// and otherwise the one in the status.
func (s *scope) findMachineVersion(ctx context.Context) (string, error) {
	var claims v1alpha1.MachineClaimList
	if err := s.Client.List(ctx, &claims, client.InNamespace(s.template.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return "", fmt.Errorf("list machine claims: %w", err)
	}

	var (
		version string
		newest  time.Time
	)

	if s.template.Status.Runner != nil {
		version = s.template.Status.Runner.MachineVersion
	}

	for i := range claims.Items {
		claim := &claims.Items[i]
		info := claim.Status.BootstrapInfo

		if claim.Spec.TemplateRef.Name == s.template.Name && info != nil && info.RunnerVersion != "" &&
			!claim.CreationTimestamp.Time.Before(newest) {
			version, newest = info.RunnerVersion, claim.CreationTimestamp.Time
		}
	}

	return version, nil
}

// addRunnerCondition adds the condition RunnerCurrent if the releases of the platform and of a machine are known.
func (s *scope) addRunnerCondition(result step.Result) step.Result {
	release := s.template.Status.Runner
	if release == nil || release.MachineVersion == "" {
		return result
	}

	age := s.Clock.Since(release.Since.Time)

	switch {
	case !release.IsOutdated():
		return result.WithCondition(v1alpha1.ConditionRunnerCurrent, metav1.ConditionTrue, "Newest",
			"machines run the newest release of the runner, "+release.MachineVersion)
	case age < runnerDeadline-runnerWarning:
		return result.WithCondition(v1alpha1.ConditionRunnerCurrent, metav1.ConditionTrue, "NewerRelease",
			fmt.Sprintf("machines run %s of the runner, a newer one was found on %s, and the newest is %s: "+
				"update the runner in the image within 30 days of that day",
				release.MachineVersion, release.Since.UTC().Format(time.DateOnly), release.Version))
	default:
		return result.WithCondition(v1alpha1.ConditionRunnerCurrent, metav1.ConditionFalse, "RunnerOutdated",
			fmt.Sprintf("machines run %s of the runner, a newer one was found %d days ago, and the newest is %s: "+
				"after 30 days GitHub sends no jobs to machines: build the image again, or set "+
				"bootstrap.config.github.runner.version to latest",
				release.MachineVersion, int(age.Hours()/24), release.Version))
	}
}
