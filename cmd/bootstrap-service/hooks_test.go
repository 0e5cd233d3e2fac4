// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	api "github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// TestHooksOfTemplate checks that the scripts that a template names for the runner of GitHub Actions run before and after
// the job.
func TestHooksOfTemplate(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	record := filepath.Join(dir, "record")
	environment := map[string]v1alpha1.EnvironmentValue{}

	for event, word := range map[string]string{"STARTED": "before", "COMPLETED": "after"} {
		script := filepath.Join(dir, word+".sh")
		must.Do(t, os.WriteFile(script, []byte("#!/bin/sh\necho "+word+" >> "+record+"\n"), 0o700))

		environment["ACTIONS_RUNNER_HOOK_JOB_"+event] = v1alpha1.EnvironmentValue(script)
	}

	site := newTestPlatforms(t)[v1alpha1.WorkloadGitHubActions]
	job := site.queueJobs(control.JobSpec{Labels: site.newJobLabels("hooks"), Command: "echo job >> " + record})[0]

	template := &v1alpha1.HypervisorMachineTemplate{}
	template.Name, template.Spec.Environment = "linux", environment

	spec, credential, err := site.issueCredential(t, template, "hooks", site.newPoolLabels("hooks"), &job)
	must.Do(t, err)

	done, err := runService(t, spec, renderConfig(t, template, spec, credential))
	must.Do(t, err)

	if done.report.Reason != api.ReasonJobDone || done.report.Result != "success" {
		t.Errorf("the machine ends with %+v\n%s", done.report, done.output)
	}

	if got, err := os.ReadFile(record); err != nil || string(got) != "before\njob\nafter\n" {
		t.Errorf("the scripts and the job wrote %q (%v)\n%s", got, err, done.output)
	}
}
