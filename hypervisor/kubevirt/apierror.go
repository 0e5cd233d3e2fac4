// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// Parts of error texts that have no status reason of their own. They come from the API server's webhook plugins
// (apiserver/pkg/admission/plugin/webhook/errors/statuserror.go).
const (
	textWebhook       = "denied the request"
	textWebhookFailed = "failed calling webhook"
	textPolicy        = "ValidatingAdmissionPolicy"
	textNoSuchPath    = "the server could not find the requested resource"
)

// writeCall and readCall are the values of the parameter isWrite.
const writeCall, readCall = true, false

// wrapAPIError gives an error of the API server its kind. action describes the call, and isWrite is true
// if the call changes something. It returns nil for a nil error.
func wrapAPIError(action string, isWrite bool, err error) error {
	if err == nil {
		return nil
	}

	kind, reason := classifyAPIError(err, isWrite)
	if kind == "" {
		return fmt.Errorf("%s: %w", action, err)
	}

	out := &hypervisor.Error{Kind: kind, Reason: reason, Message: action, Err: err}

	if seconds, ok := apierrors.SuggestsClientDelay(err); ok && seconds > 0 {
		out.RetryAfter = time.Duration(seconds) * time.Second
	}

	return out
}

// classifyAPIError returns the kind and the reason of an error. The kind is "" for an error that the
// caller retries.
func classifyAPIError(err error, isWrite bool) (hypervisor.Kind, string) {
	text := err.Error()

	switch {
	case errors.Is(err, context.Canceled):
		return "", ""
	case errclass.IsOverQuota(err):
		return hypervisor.NoCapacity, errclass.ReasonQuotaExceeded
	case strings.Contains(text, textWebhookFailed):
		return hypervisor.Unavailable, "WebhookUnavailable"
	case strings.Contains(text, textWebhook), strings.Contains(text, textPolicy),
		apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return hypervisor.Rejected, "AdmissionRefused"
	case apierrors.IsUnauthorized(err):
		return hypervisor.Rejected, "Unauthorized"
	case apierrors.IsForbidden(err):
		return hypervisor.Rejected, "Forbidden"
	case apierrors.IsNotFound(err):
		if strings.Contains(text, textNoSuchPath) {
			return hypervisor.NotFound, "KindMissing"
		}

		return hypervisor.NotFound, "NotFound"
	case apierrors.IsConflict(err), apierrors.IsTooManyRequests(err), apierrors.IsServerTimeout(err):
		return hypervisor.Busy, "Busy"
	case apierrors.IsServiceUnavailable(err):
		return hypervisor.Unavailable, "Unavailable"
	default:
		return classifyNetworkError(err, isWrite)
	}
}

// classifyNetworkError returns the kind and the reason of an error for a call without a response. The
// outcome of a write is unknown if the request may have reached the API server.
func classifyNetworkError(err error, isWrite bool) (hypervisor.Kind, string) {
	var op *net.OpError

	switch {
	case hypervisor.IsUntrusted(err):
		return hypervisor.Rejected, "CertificateUntrusted"
	case errors.As(err, &op) && op.Op == "dial":
		return hypervisor.Unavailable, "Unreachable"
	case apierrors.IsInternalError(err), apierrors.IsTimeout(err), errors.Is(err, context.DeadlineExceeded), isNetworkError(err):
		if isWrite {
			return hypervisor.UnknownOutcome, "NoAnswer"
		}

		return hypervisor.Unavailable, "NoAnswer"
	default:
		return "", ""
	}
}

func isNetworkError(err error) bool {
	_, ok := errors.AsType[net.Error](err)

	return ok
}
