// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// Kinds of errors, for errors.Is.
var (
	// ErrNotFound means that the object does not exist.
	ErrNotFound = errors.New("not found")
	// ErrExists means that the object to create exists.
	ErrExists = errors.New("object already exists")
	// ErrConflict means that the object has changed since it was read, or was recreated with the same
	// name.
	ErrConflict = errors.New("object has changed since it was read")
	// ErrNoNamespace means that the namespace of the object does not exist or is being deleted.
	ErrNoNamespace = errors.New("namespace does not exist")
	// ErrNoKind means that the cluster does not serve the kind.
	ErrNoKind = errors.New("the cluster does not serve the kind")
	// ErrNotCached means that the result cannot be read without a call.
	ErrNotCached = errors.New("the cache is not complete")
)

// Reasons of errors in reports.
const (
	ReasonConflict    = "Conflict"
	ReasonExists      = "AlreadyExists"
	ReasonNotFound    = "NotFound"
	ReasonNoNamespace = "NamespaceMissing"
	ReasonNoKind      = "KindNotServed"
	ReasonRefused     = "Refused"
	ReasonForbidden   = "Forbidden"
	ReasonUnavailable = "Unavailable"
	ReasonInvalid     = "Invalid"
	ReasonTimeout     = "Timeout"
)

// Error wraps an error of the API server with a class, a reason and one of the errors above. It returns
// nil for nil. Errors that do not go away by themselves (rejected by admission or validation, missing
// permission, unknown kind) are Permanent. Errors of the network, outages, rate limits, conflicts and a
// missing namespace are Transient. For a Secret that is invalid, Error removes values from the text.
func Error(verb string, ref Ref, err error) error {
	if err == nil {
		return nil
	}

	class, reason, kind := classify(ref, err)
	if reason == ReasonInvalid && ref.GVK.GroupKind() == (schema.GroupKind{Kind: "Secret"}) {
		err = redactValues(err)
	}

	if kind == nil {
		return errclass.New(class, reason, "%s %s: %w", verb, ref, err)
	}

	return errclass.New(class, reason, "%s %s: %w: %w", verb, ref, kind, err)
}

func classify(ref Ref, err error) (class errclass.Class, reason string, classified error) {
	switch {
	case meta.IsNoMatchError(err):
		return errclass.Permanent, ReasonNoKind, ErrNoKind
	case apierrors.IsNotFound(err) && isNamespaceMissing(ref, err), apierrors.HasStatusCause(err, "NamespaceTerminating"):
		return errclass.Transient, ReasonNoNamespace, ErrNoNamespace
	case apierrors.IsNotFound(err):
		return errclass.Transient, ReasonNotFound, ErrNotFound
	case apierrors.IsAlreadyExists(err):
		return errclass.Transient, ReasonExists, ErrExists
	case apierrors.IsConflict(err):
		return errclass.Transient, ReasonConflict, ErrConflict
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return errclass.Transient, ReasonTimeout, nil
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), isSchemaError(err):
		return errclass.Permanent, ReasonInvalid, nil
	case errclass.IsOverQuota(err): // another object may be deleted, or the quota raised
		return errclass.Transient, errclass.ReasonQuotaExceeded, nil
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return errclass.Permanent, ReasonForbidden, nil
	default:
		return classifyStatus(err)
	}
}

// isSchemaError reports whether a manifest does not match the schema of its kind. The API server returns
// such an error of a server-side apply as an internal error (apimachinery,
// managedfields/internal/structuredmerge.go).
func isSchemaError(err error) bool {
	return strings.Contains(err.Error(), "failed to create typed patch object")
}

// redactValues returns an error that names only the invalid fields of a Secret, because the API server's
// error may contain values.
func redactValues(err error) error {
	fields := "the server reports no fields"

	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Details != nil && len(status.Status().Details.Causes) > 0 {
		var names []string
		for _, cause := range status.Status().Details.Causes {
			names = append(names, cause.Field)
		}

		fields = strings.Join(names, ", ")
	}

	return fmt.Errorf("the Secret is invalid (%s); its values are redacted", fields)
}

// classifyStatus classifies an error by its HTTP status. A 4xx status is permanent, except 408 and 429.
// All other errors are transient.
func classifyStatus(err error) (errclass.Class, string, error) {
	code := http.StatusServiceUnavailable

	var status apierrors.APIStatus
	if errors.As(err, &status) {
		code = int(status.Status().Code)
	}

	if code >= http.StatusBadRequest && code < http.StatusInternalServerError &&
		code != http.StatusRequestTimeout && code != http.StatusTooManyRequests {
		return errclass.Permanent, ReasonRefused, nil
	}

	return errclass.Transient, ReasonUnavailable, nil
}

// isNamespaceMissing reports whether a not-found error is about the namespace of the object and not about
// the object itself. The details of the error then name the namespace.
func isNamespaceMissing(ref Ref, err error) bool {
	var status apierrors.APIStatus
	if ref.Namespace == "" || ref.GVK.Kind == "Namespace" || !errors.As(err, &status) {
		return false
	}

	details := status.Status().Details

	return details != nil && details.Kind == "namespaces" && details.Name == ref.Namespace
}
