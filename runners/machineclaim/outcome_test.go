// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim_test

import (
	"errors"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/workload"
)

func TestOutcomeOfErrors(t *testing.T) {
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
