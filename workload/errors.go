// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"errors"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// ErrSignature means that a webhook's signature or token does not match the secret.
var ErrSignature = errors.New("webhook signature does not match: check that the platform and the pool hold the same secret")

// ErrNoData means that a successful response lacks the data that it must have. Callers must not take a list that
// is missing for an empty one. A proxy may have answered.
var ErrNoData = errors.New("the response has status 200 and lacks the requested data: check what answers at this URL")

// Kind classifies an error by what the caller has to do. An error without a kind is transient.
type Kind string

// Kinds of errors.
const (
	// NotFound means that the platform does not have the object.
	NotFound Kind = "NotFound"
	// RunnerBusy means that the runner runs a job and was not removed.
	RunnerBusy Kind = "RunnerBusy"
	// Conflict means that a live runner or another listener already uses the name.
	Conflict Kind = "Conflict"
	// RateLimited means that the caller can retry after Error.RetryAfter.
	RateLimited Kind = "RateLimited"
	// Rejected means that a person has to change something. Reason and Message name the fix.
	Rejected Kind = "Rejected"
)

// Error is an error with a kind, a reason, a message for people and, for RateLimited, a delay.
type Error = errclass.KindError[Kind]

// KindOf returns the kind of the first Error in err's chain, or "" if the chain has none.
func KindOf(err error) Kind { return errclass.KindOf[Kind](err) }

// Is reports whether err has the kind. It returns false for a nil error.
func Is(err error, kind Kind) bool { return err != nil && KindOf(err) == kind }

// Reasons of the errors of Platform.ResolveRunner that callers distinguish.
const (
	// ReasonScopeMissing means that neither the template nor the workload names the scope of the
	// runners.
	ReasonScopeMissing = "ScopeMissing"
	// ReasonBootstrapIncomplete means that the template has no settings for the platform.
	ReasonBootstrapIncomplete = "BootstrapIncomplete"
)

// ReasonRepositoriesMissing is the reason of NewRepositoriesMissingError.
const ReasonRepositoriesMissing = "RepositoriesMissing"

// Reasons of errors that all platforms share.
const (
	ReasonRunnerBusy    = "RunnerBusy"
	ReasonRunnerExists  = "RunnerNameTaken"
	ReasonRunnerMissing = "RunnerNotFound"
	ReasonJobMissing    = "JobNotFound"
	// ReasonJobDeleted means that the credentials can read the jobs of the repository, and that it does not
	// have the job.
	ReasonJobDeleted = "JobDeleted"
	// ReasonReleaseUnknown means that the platform does not name the release of its runner with a checksum.
	ReasonReleaseUnknown = "RunnerReleaseUnknown"
	// ReasonMoved means that a repository has another name than in the settings.
	ReasonMoved = "RepositoryMoved"
)

// NewJobDeletedError returns the error of a job that the platform certainly does not have.
func NewJobDeletedError(id, repository string) *Error {
	return &Error{
		Kind: NotFound, Reason: ReasonJobDeleted, Message: "the CI platform no longer has job " + id + " of " + repository,
	}
}

// NewMovedError returns the error of a repository that has another name than the settings. Webhooks have the
// new name. The field is the setting that has to change.
func NewMovedError(former, name, field string) *Error {
	return NewRejected(ReasonMoved, former+" was renamed or moved to "+name+
		": change "+field+"; until then the operator receives its jobs by polling only")
}

// NewRejected returns an error of kind Rejected. The message must name the fix.
func NewRejected(reason, message string) *Error {
	return &Error{Kind: Rejected, Reason: reason, Message: message}
}

// NewRepositoriesMissingError returns the error of a poll that has no repository to list jobs of:
// the platform has no job list for the scope, and the caller names no repositories.
func NewRepositoriesMissingError(scope string) *Error {
	return NewRejected(ReasonRepositoriesMissing, "list the jobs of "+scope+": the platform has no job list for it"+
		"; name repositories in spec.demand.polling.repositories, or send webhooks and set spec.workload.webhook")
}

// NewMissingBootstrapError returns the error of a template that has no settings for a platform. The
// field is the platform's key in spec.bootstrap.config. The template may be nil.
func NewMissingBootstrapError(template *v1alpha1.HypervisorMachineTemplate, field string) error {
	name := ""
	if template != nil {
		name = template.Name
	}

	return errclass.New(errclass.Configuration, ReasonBootstrapIncomplete,
		"configure the CI platform of template %s: spec.bootstrap.config.%s is missing", name, field)
}
