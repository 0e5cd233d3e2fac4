// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"cmp"
	"errors"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/identity"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/workload"
)

// NewErrorResult returns the step result for an error of a hypervisor, a CI platform or the
// identity provider: wait, stall, or fail with back-off, depending on the kind of the error. delay
// applies if the error has no delay of its own, and fallback is the reason if it has none.
func NewErrorResult(err error, delay time.Duration, fallback string) step.Result {
	if e, ok := errors.AsType[*hypervisor.Error](err); ok {
		return newHypervisorResult(e, err, delay, fallback)
	}

	if e, ok := errors.AsType[*workload.Error](err); ok {
		return newWorkloadResult(e, err, delay, fallback)
	}

	if e, ok := errors.AsType[*identity.Error](err); ok {
		return newIdentityResult(e, err, delay)
	}

	switch errclass.ClassOf(err) {
	case errclass.Configuration, errclass.Permanent:
		return step.Stall(errclass.ReasonOf(err, fallback), err.Error())
	case errclass.Resource:
		return step.Wait(delay, errclass.ReasonOf(err, fallback), err.Error())
	default:
		return step.Fail(errclass.Wrap(errclass.Transient, errclass.ReasonOf(err, fallback), err))
	}
}

func newHypervisorResult(e *hypervisor.Error, err error, delay time.Duration, fallback string) step.Result {
	reason := cmp.Or(e.Reason, fallback)

	switch e.Kind {
	case hypervisor.Rejected, hypervisor.NotFound, hypervisor.NotOwned:
		return step.Stall(reason, err.Error())
	case hypervisor.Busy, hypervisor.NoCapacity, hypervisor.Unavailable, hypervisor.IDTaken:
		return step.Wait(cmp.Or(e.RetryAfter, delay), reason, err.Error())
	default:
		return step.Fail(errclass.Wrap(errclass.Transient, reason, err))
	}
}

func newWorkloadResult(e *workload.Error, err error, delay time.Duration, fallback string) step.Result {
	reason := cmp.Or(e.Reason, fallback)

	switch e.Kind {
	case workload.Rejected, workload.NotFound:
		return step.Stall(reason, err.Error())
	case workload.RateLimited, workload.RunnerBusy, workload.Conflict:
		return step.Wait(cmp.Or(e.RetryAfter, delay), reason, err.Error())
	default:
		return step.Fail(errclass.Wrap(errclass.Transient, reason, err))
	}
}

// Reasons of errors of the identity provider.
const (
	ReasonSPIREUnavailable    = "SPIREUnavailable"
	ReasonSPIRERejected       = "SPIRERejected"
	ReasonTrustDomainMismatch = "TrustDomainMismatch"
)

func newIdentityResult(e *identity.Error, err error, delay time.Duration) step.Result {
	switch e.Kind {
	case identity.TrustDomainMismatch:
		return step.Stall(ReasonTrustDomainMismatch, err.Error())
	case identity.Rejected:
		return step.Stall(ReasonSPIRERejected, err.Error())
	default:
		return step.Wait(delay, ReasonSPIREUnavailable, err.Error())
	}
}
