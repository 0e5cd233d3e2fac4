// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	simgithub "github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// TestTokenExpires checks that jobs end while the token of the CI platform is expired for an hour, that the template
// names the Secret, and that the jobs that were queued in the meantime run after the Secret has a new token.
func TestTokenExpires(t *testing.T) {
	t.Parallel()

	const next = "ghp_simulatedpersonalaccesstoken0000001"

	scopes := []string{"repo", "admin:org", "admin:org_hook", "manage_runners:enterprise"}
	clock := conformance.FastClock(t, clockSpeed)
	f := newFastFleet(t, fleet.Options{Clock: clock, GitHub: simgithub.Options{
		PATs: []simgithub.PAT{{Token: githubtest.PAT, Scopes: scopes}, {Token: next, Scopes: scopes}},
	}})
	f.Populate(4)
	f.Start()
	f.EventuallyReady(f.NewPool(0))

	release := holdJobs(t, f, 2)
	f.GitHub.RevokeToken(githubtest.PAT)
	checkContains(t, f.EventuallyCondition(f.NewTemplate(), "WorkloadReady", metav1.ConditionFalse, "GitHubCredentialsInvalid"),
		"Secret of bootstrap.config.github.credentials")

	expired := clock.Now()

	queueJobs(f, 2)
	release()
	f.EventuallyJobsDone(2)

	for clock.Since(expired) < time.Hour {
		clock.Step(5 * time.Minute)
		<-clock.After(3 * time.Second)
	}

	if made := f.CountClones(); made != 2 {
		t.Errorf("%d VMs were created, want 2", made)
	}

	f.SetSecret("github", "pat", next)
	f.EventuallyJobsDone(4)
	f.EventuallyClean()

	if made := f.CountClones(); made != 4 {
		t.Errorf("%d VMs were created for 4 jobs", made)
	}
}
