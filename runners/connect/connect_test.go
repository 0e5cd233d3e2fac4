// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package connect_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/workload"
)

func TestScope(t *testing.T) {
	t.Parallel()

	template := func(g *v1alpha1.GitHubBootstrap) *v1alpha1.HypervisorMachineTemplate {
		out := &v1alpha1.HypervisorMachineTemplate{ObjectMeta: metav1.ObjectMeta{Name: "t"}}
		if g != nil {
			out.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{GitHub: g}
		}

		return out
	}
	pool := func(g *v1alpha1.GitHubActionsConfig) v1alpha1.Workload {
		return v1alpha1.Workload{Type: v1alpha1.WorkloadGitHubActions, Config: &v1alpha1.WorkloadConfig{GitHub: g}}
	}

	cases := map[string]struct {
		template *v1alpha1.HypervisorMachineTemplate
		load     v1alpha1.Workload
		want     connect.GitHubScope
		reason   string
	}{
		"repository wins over organization in one place": {
			template(&v1alpha1.GitHubBootstrap{Owner: "o", Repository: "r", Organization: "g"}), pool(nil),
			connect.GitHubScope{Owner: "o", Repository: "r"}, "",
		},
		"the pool's organization wins over the template's repository": {
			template(&v1alpha1.GitHubBootstrap{Owner: "o", Repository: "r"}),
			pool(&v1alpha1.GitHubActionsConfig{Organization: "g", Labels: []string{"x"}, RunnerGroup: "fast"}),
			connect.GitHubScope{Organization: "g", Labels: []string{"x"}, Group: "fast"}, "",
		},
		"the pool's repository is owner/name": {
			template(&v1alpha1.GitHubBootstrap{Organization: "g"}), pool(&v1alpha1.GitHubActionsConfig{Repository: "a/b"}),
			connect.GitHubScope{Owner: "a", Repository: "b"}, "",
		},
		"an owner alone is an organization": {
			template(&v1alpha1.GitHubBootstrap{Owner: "o"}), pool(nil), connect.GitHubScope{Organization: "o"}, "",
		},
		"no scope at all is named":     {template(&v1alpha1.GitHubBootstrap{}), pool(nil), connect.GitHubScope{}, "ScopeMissing"},
		"no credentials at all either": {template(nil), pool(nil), connect.GitHubScope{}, "BootstrapIncomplete"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got, err := connect.Scope(tc.template, tc.load)
			if reason := errclass.Reason(err, ""); reason != tc.reason {
				t.Fatalf("error %v, want reason %q", err, tc.reason)
			}

			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestOutcome(t *testing.T) {
	t.Parallel()

	const after = 7 * time.Second

	cases := map[string]struct {
		err  error
		want string
	}{
		"hypervisor says busy":         {&hypervisor.Error{Kind: hypervisor.Busy, Reason: "Locked", Message: "VM is locked"}, "wait Locked: VM is locked"},
		"hypervisor has no room":       {&hypervisor.Error{Kind: hypervisor.NoCapacity, Message: "no room"}, "wait Fallback: no room"},
		"hypervisor rejects":           {&hypervisor.Error{Kind: hypervisor.Rejected, Reason: "NoPrivilege", Message: "give it"}, "stall NoPrivilege: give it"},
		"hypervisor's outcome unknown": {&hypervisor.Error{Kind: hypervisor.UnknownOutcome, Message: "cut off"}, "fail Fallback: cut off"},
		"forge limits the rate":        {&workload.Error{Kind: workload.RateLimited, Reason: "RateLimited", Message: "later"}, "wait RateLimited: later"},
		"forge rejects":                {&workload.Error{Kind: workload.Rejected, Reason: "Forbidden", Message: "permit it"}, "stall Forbidden: permit it"},
		"configuration":                {errclass.New(errclass.Configuration, "SecretNotFound", "no secret"), "stall SecretNotFound: no secret"},
		"anything else is tried again": {errors.New("connection refused"), "fail Fallback: connection refused"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if got := connect.Outcome(tc.err, after, "Fallback").String(); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
