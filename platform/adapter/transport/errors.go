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
	// ErrNotFound is an object that is not there.
	ErrNotFound = errors.New("not found")
	// ErrExists is an object that should have been made and is there.
	ErrExists = errors.New("it exists already")
	// ErrConflict is an object that has changed since it was read, or is another one of
	// the same name by now.
	ErrConflict = errors.New("it has changed since it was read")
	// ErrNoNamespace is an object whose namespace is not there, yet or any more.
	ErrNoNamespace = errors.New("its namespace is not there")
	// ErrNoKind is a kind that the cluster does not serve.
	ErrNoKind = errors.New("the cluster has no such kind")
)

// Reasons of errors, for reports.
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

// Error gives an error of the API server its class, its reason and its match for
// errors.Is. Answers that stay what they are (refused by admission or validation, not
// permitted) are Permanent; the network, outages, rate limits, conflicts and a namespace
// that is missing are Transient.
func Error(verb string, ref Ref, err error) error {
	if err == nil {
		return nil
	}

	class, reason, kind := classify(ref, err)
	if reason == ReasonInvalid && ref.GVK.GroupKind() == (schema.GroupKind{Kind: "Secret"}) {
		err = withoutValues(err)
	}

	if kind == nil {
		return errclass.New(class, reason, "%s %s: %w", verb, ref, err)
	}

	return errclass.New(class, reason, "%s %s: %w: %w", verb, ref, kind, err)
}

func classify(ref Ref, err error) (errclass.Class, string, error) {
	switch {
	case meta.IsNoMatchError(err):
		return errclass.Permanent, ReasonNoKind, ErrNoKind
	case apierrors.IsNotFound(err) && namespaceMissing(ref, err), apierrors.HasStatusCause(err, "NamespaceTerminating"):
		return errclass.Transient, ReasonNoNamespace, ErrNoNamespace
	case apierrors.IsNotFound(err):
		return errclass.Transient, ReasonNotFound, ErrNotFound
	case apierrors.IsAlreadyExists(err):
		return errclass.Transient, ReasonExists, ErrExists
	case apierrors.IsConflict(err):
		return errclass.Transient, ReasonConflict, ErrConflict
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return errclass.Transient, ReasonTimeout, nil
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), untyped(err):
		return errclass.Permanent, ReasonInvalid, nil
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return errclass.Permanent, ReasonForbidden, nil
	default:
		return byStatus(err)
	}
}

// untyped tells a manifest that does not fit its kind's schema: a server-side apply answers
// it as an internal error (apimachinery, managedfields/internal/structuredmerge.go).
func untyped(err error) bool {
	return strings.Contains(err.Error(), "failed to create typed patch object")
}

// withoutValues is what is wrong with a Secret without what is in it, which the API
// server's own words may quote.
func withoutValues(err error) error {
	fields := "the server does not say which fields"

	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Details != nil && len(status.Status().Details.Causes) > 0 {
		var names []string
		for _, cause := range status.Status().Details.Causes {
			names = append(names, cause.Field)
		}

		fields = strings.Join(names, ", ")
	}

	return fmt.Errorf("it is invalid (%s); values of Secrets are not repeated here", fields)
}

// byStatus sorts the rest by HTTP status: what the server may answer otherwise later is
// transient.
func byStatus(err error) (errclass.Class, string, error) {
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

// namespaceMissing tells the answer to a write into a namespace that is not there from
// one about the object itself: its details name the namespace.
func namespaceMissing(ref Ref, err error) bool {
	var status apierrors.APIStatus
	if ref.Namespace == "" || ref.GVK.Kind == "Namespace" || !errors.As(err, &status) {
		return false
	}

	details := status.Status().Details

	return details != nil && details.Kind == "namespaces" && details.Name == ref.Namespace
}
