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

	sites := platformSites(t)

	var count atomic.Int64

	one := func(platform, outcome string) string {
		site := sites[platform]
		if outcome == "idle" && !site.idles {
			outcome = "success"
		}

		label := fmt.Sprintf("%s-%d", platform[:3], count.Add(1))

		return site.oneJob(t, label, outcome)
	}

	property.Check(t, "a machine does one job and ends", lives(), prop.ForAllNoShrink(one,
		gen.OneConstOf(v1alpha1.WorkloadGitHubActions, v1alpha1.WorkloadGitLabCI, v1alpha1.WorkloadBuildkite, v1alpha1.WorkloadGeneric),
		gen.OneConstOf("success", "failure", "idle")))
}

// TestPropertyRunnerHasThePoolsLabels checks that a runner has all labels, tags and the queue of its pool at the
// platform, and that a job with all these labels runs on it.
//
// Feature: hyperfleet-operator, Property 12: CI/CD Runner Configuration
func TestPropertyRunnerHasThePoolsLabels(t *testing.T) {
	t.Parallel()

	sites := platformSites(t)

	var count atomic.Int64

	property.Check(t, "a runner has what its pool says", lives(), prop.ForAllNoShrink(func(platform string, words []string) string {
		site := sites[platform]
		own := fmt.Sprintf("%s-%d", platform[:3], count.Add(1))
		labels, asked := site.has(own), site.asks(own)

		for i, word := range words {
			if site.platform.Traits().Slug == "buildkite" {
				word = fmt.Sprintf("key%d=%s", i, word)
			}

			labels, asked = append(labels, word), append(asked, word)
		}

		job := site.queue(control.JobSpec{Labels: asked, Duration: time.Millisecond})[0]

		done, err := site.live(t, own, unique(labels), &job)
		if err != nil {
			return err.Error()
		}

		for _, label := range labels {
			if !slices.Contains(done.spec.Labels, label) {
				return fmt.Sprintf("the runner has %v, and not %s", done.spec.Labels, label)
			}
		}

		for _, seen := range site.state().Jobs {
			if seen.ID == job.ID && (seen.Conclusion != "success" || !site.by(seen, own)) {
				return fmt.Sprintf("the job that asks for %v: %+v\n%s", asked, seen, done.out)
			}
		}

		return ""
	}, gen.OneConstOf(v1alpha1.WorkloadGitHubActions, v1alpha1.WorkloadGitLabCI, v1alpha1.WorkloadBuildkite, v1alpha1.WorkloadGeneric),
		gen.SliceOfN(2, gen.RegexMatch(`^[a-z][a-z0-9]{2,8}$`))))
}

func unique(labels []string) []string {
	slices.Sort(labels)

	return slices.Compact(labels)
}

// lives returns options with few runs, because each run starts programs. TestJobOfEachPlatform tests each platform in
// detail.
func lives() property.Options {
	return property.Options{Brief: 4, Workers: 4}
}

// lastReport returns the last report of the machine with the root folder dir.
func lastReport(dir string) (api.Report, error) {
	var report api.Report

	data, err := os.ReadFile(filepath.Join(dir, api.StatusPath))
	if err == nil {
		err = json.Unmarshal(data, &report)
	}

	return report, err
}
