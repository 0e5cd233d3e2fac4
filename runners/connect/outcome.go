// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"errors"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/identity"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/workload"
)

// Outcome turns an error of a boundary into what its kind asks for: wait, stall, or
// fail with back-off. after is the wait where the error names none; fallback the reason
// where it has none.
func Outcome(err error, after time.Duration, fallback string) step.Result {
	if e, ok := errors.AsType[*hypervisor.Error](err); ok {
		return hypervisorOutcome(e, err, after, fallback)
	}

	if e, ok := errors.AsType[*workload.Error](err); ok {
		return workloadOutcome(e, err, after, fallback)
	}

	if e, ok := errors.AsType[*identity.Error](err); ok {
		return identityOutcome(e, err, after)
	}

	switch errclass.Of(err) {
	case errclass.Configuration, errclass.Permanent:
		return step.Stall(errclass.Reason(err, fallback), err.Error())
	case errclass.Resource:
		return step.Wait(after, errclass.Reason(err, fallback), err.Error())
	default:
		return step.Fail(errclass.Wrap(errclass.Transient, errclass.Reason(err, fallback), err))
	}
}

func hypervisorOutcome(e *hypervisor.Error, err error, after time.Duration, fallback string) step.Result {
	reason := or(e.Reason, fallback)

	switch e.Kind {
	case hypervisor.Rejected, hypervisor.NotFound, hypervisor.NotOwned:
		return step.Stall(reason, err.Error())
	case hypervisor.Busy, hypervisor.NoCapacity, hypervisor.Unavailable, hypervisor.IDTaken:
		return step.Wait(orAfter(e.After, after), reason, err.Error())
	default:
		return step.Fail(errclass.Wrap(errclass.Transient, reason, err))
	}
}

func workloadOutcome(e *workload.Error, err error, after time.Duration, fallback string) step.Result {
	reason := or(e.Reason, fallback)

	switch e.Kind {
	case workload.Rejected, workload.NotFound:
		return step.Stall(reason, err.Error())
	case workload.RateLimited, workload.RunnerBusy, workload.Conflict:
		return step.Wait(orAfter(e.After, after), reason, err.Error())
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

func identityOutcome(e *identity.Error, err error, after time.Duration) step.Result {
	switch e.Kind {
	case identity.TrustDomainMismatch:
		return step.Stall(ReasonTrustDomainMismatch, err.Error())
	case identity.Rejected:
		return step.Stall(ReasonSPIRERejected, err.Error())
	default:
		return step.Wait(after, ReasonSPIREUnavailable, err.Error())
	}
}

func or(reason, fallback string) string {
	if reason == "" {
		return fallback
	}

	return reason
}

func orAfter(own, fallback time.Duration) time.Duration {
	if own == 0 {
		return fallback
	}

	return own
}
