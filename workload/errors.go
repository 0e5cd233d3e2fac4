// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"errors"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// ErrSignature says that a webhook's signature does not match its body.
var ErrSignature = errors.New("webhook signature does not match: check that the platform and the pool hold the same secret")

// Kind says what a caller does about an error. An error without a kind is transient.
type Kind string

// Kinds of errors.
const (
	NotFound Kind = "NotFound"
	// RunnerBusy: the runner runs a job and was not removed.
	RunnerBusy Kind = "RunnerBusy"
	// Conflict: a live runner of that name exists.
	Conflict Kind = "Conflict"
	// RateLimited: try again after Error.After.
	RateLimited Kind = "RateLimited"
	// Rejected: a person must change something; Reason and Message say what.
	Rejected Kind = "Rejected"
)

// Error is an error with a kind, and what a person needs to know.
type Error = errclass.KindError[Kind]

// KindOf gives the kind of the first Error in err's chain, or "".
func KindOf(err error) Kind { return errclass.KindOf[Kind](err) }

// Is tells whether err is of the kind.
func Is(err error, kind Kind) bool { return err != nil && KindOf(err) == kind }

// Reasons of the errors of Platform.Runner that callers tell apart.
const (
	// ReasonScopeMissing: neither the template nor the workload says whose runners.
	ReasonScopeMissing = "ScopeMissing"
	// ReasonBootstrapIncomplete: the template has no settings for the platform.
	ReasonBootstrapIncomplete = "BootstrapIncomplete"
)

// ReasonRepositoriesMissing is that of NothingToAsk.
const ReasonRepositoriesMissing = "RepositoriesMissing"

// Reasons that errors of all platforms have.
const (
	ReasonRunnerBusy    = "RunnerBusy"
	ReasonRunnerExists  = "RunnerNameTaken"
	ReasonRunnerMissing = "RunnerNotFound"
	ReasonJobMissing    = "JobNotFound"
)

// Reject gives the error of kind Rejected, whose message names the fix.
func Reject(reason, message string) *Error {
	return &Error{Kind: Rejected, Reason: reason, Message: message}
}

// NothingToAsk is the error of a poll of a scope whose jobs the platform does not list, where no
// repository is known to ask for either.
func NothingToAsk(scope string) *Error {
	return Reject(ReasonRepositoriesMissing, "there is no list of the jobs of "+scope+
		": name repositories in spec.demand.polling.repositories, or have webhooks sent and set spec.workload.webhook")
}

// MissingBootstrap is the error of a template that has no settings for a platform, which are in
// a field of spec.bootstrap.config. The template may be nil.
func MissingBootstrap(template *v1alpha1.HypervisorMachineTemplate, field string) error {
	name := ""
	if template != nil {
		name = template.Name
	}

	return errclass.New(errclass.Configuration, ReasonBootstrapIncomplete,
		"reach the CI platform of template %s: spec.bootstrap.config.%s is missing", name, field)
}
