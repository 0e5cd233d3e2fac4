// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"

	api "github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

// TestPropertyMachineDoesOneJob checks for all platforms and job outcomes that a machine registers the runner of its
// configuration, runs one job or waits up to the idle timeout, and stops without leaving its credential behind. The
// machines in this test do not attest. They get their credential on the cloud-init ISO.
//
// Feature: hyperfleet-operator, Property 11: CI/CD Platform Integration via VM Bootstrap Service
func TestPropertyMachineDoesOneJob(t *testing.T) {
	t.Parallel()

	sites := newTestPlatforms(t)

	var count atomic.Int64

	run := func(platform, outcome string) string {
		site := sites[platform]
		if outcome == "idle" && !site.canIdle {
			outcome = "success"
		}

		label := fmt.Sprintf("%s-%d", platform[:3], count.Add(1))

		return site.runJob(t, label, outcome)
	}

	property.Check(t, "a machine does one job and ends", newPropertyOptions(), prop.ForAllNoShrink(run,
		gen.OneConstOf(v1alpha1.WorkloadGitHubActions, v1alpha1.WorkloadGitLabCI, v1alpha1.WorkloadBuildkite, v1alpha1.WorkloadGeneric),
		gen.OneConstOf("success", "failure", "idle")))
}

// TestPropertyRunnerHasThePoolsLabels checks that a runner has all labels, tags and the queue of its pool at the
// platform, and that a job with all these labels runs on it.
//
// Feature: hyperfleet-operator, Property 12: CI/CD Runner Configuration
func TestPropertyRunnerHasThePoolsLabels(t *testing.T) {
	t.Parallel()

	sites := newTestPlatforms(t)

	var count atomic.Int64

	property.Check(t, "a runner has its pool's labels", newPropertyOptions(), prop.ForAllNoShrink(func(platform string, suffixes []string) string {
		site := sites[platform]
		own := fmt.Sprintf("%s-%d", platform[:3], count.Add(1))
		labels, jobLabels := site.newPoolLabels(own), site.newJobLabels(own)

		for i, suffix := range suffixes {
			if site.platform.Traits().Slug == "buildkite" {
				suffix = fmt.Sprintf("key%d=%s", i, suffix)
			}

			labels, jobLabels = append(labels, suffix), append(jobLabels, suffix)
		}

		job := site.queueJobs(control.JobSpec{Labels: jobLabels, Duration: time.Millisecond})[0]

		done, err := site.runMachine(t, own, sortUnique(labels), &job)
		if err != nil {
			return err.Error()
		}

		for _, label := range labels {
			if !slices.Contains(done.spec.Labels, label) {
				return fmt.Sprintf("the runner has %v, and not %s", done.spec.Labels, label)
			}
		}

		for _, seen := range site.getState().Jobs {
			if seen.ID == job.ID && (seen.Conclusion != "success" || !site.hasRun(seen, own)) {
				return fmt.Sprintf("the job with the labels %v: %+v\n%s", jobLabels, seen, done.output)
			}
		}

		return ""
	}, gen.OneConstOf(v1alpha1.WorkloadGitHubActions, v1alpha1.WorkloadGitLabCI, v1alpha1.WorkloadBuildkite, v1alpha1.WorkloadGeneric),
		gen.SliceOfN(2, gen.RegexMatch(`^[a-z][a-z0-9]{2,8}$`))))
}

func sortUnique(labels []string) []string {
	slices.Sort(labels)

	return slices.Compact(labels)
}

// newPropertyOptions returns options with few runs, because each run starts programs. TestJobOfEachPlatform tests each platform in
// detail.
func newPropertyOptions() property.Options {
	return property.Options{Brief: 4, Workers: 4}
}

// readLastReport returns the last report of the machine with the root folder dir.
func readLastReport(dir string) (api.Report, error) {
	var report api.Report

	data, err := os.ReadFile(filepath.Join(dir, api.StatusPath))
	if err == nil {
		err = json.Unmarshal(data, &report)
	}

	return report, err
}
