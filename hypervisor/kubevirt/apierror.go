// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Texts of refusals that have no status reason of their own: the API server's quota
// admission (plugin/pkg/admission/resourcequota/controller.go) and its webhook plugins
// (apiserver/pkg/admission/plugin/webhook/errors/statuserror.go).
const (
	textQuota         = "exceeded quota"
	textWebhook       = "denied the request"
	textWebhookFailed = "failed calling webhook"
	textPolicy        = "ValidatingAdmissionPolicy"
	textNoSuchPath    = "the server could not find the requested resource"
)

// explain gives an error of the API server its kind. what says what was tried, write
// whether it would have changed something.
func explain(what string, write bool, err error) error {
	if err == nil {
		return nil
	}

	kind, reason := classify(err, write)
	if kind == "" {
		return fmt.Errorf("%s: %w", what, err)
	}

	out := &hypervisor.Error{Kind: kind, Reason: reason, Message: what, Err: err}

	if seconds, ok := apierrors.SuggestsClientDelay(err); ok && seconds > 0 {
		out.After = time.Duration(seconds) * time.Second
	}

	return out
}

// classify gives the kind and the reason of an error, or "" for one that is best tried
// again.
func classify(err error, write bool) (hypervisor.Kind, string) {
	text := err.Error()

	switch {
	case errors.Is(err, context.Canceled):
		return "", ""
	case strings.Contains(text, textQuota):
		return hypervisor.NoCapacity, "QuotaExceeded"
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
		return network(err, write)
	}
}

// network classifies what kept a call from an answer.
func network(err error, write bool) (hypervisor.Kind, string) {
	var (
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
		invalid   x509.CertificateInvalidError
		verify    *tls.CertificateVerificationError
		op        *net.OpError
	)

	switch {
	case errors.As(err, &authority), errors.As(err, &hostname), errors.As(err, &invalid), errors.As(err, &verify):
		return hypervisor.Rejected, "CertificateUntrusted"
	case errors.As(err, &op) && op.Op == "dial":
		return hypervisor.Unavailable, "Unreachable"
	case apierrors.IsInternalError(err), apierrors.IsTimeout(err), errors.Is(err, context.DeadlineExceeded), isNet(err):
		if write {
			return hypervisor.UnknownOutcome, "NoAnswer"
		}

		return hypervisor.Unavailable, "NoAnswer"
	default:
		return "", ""
	}
}

func isNet(err error) bool {
	_, ok := errors.AsType[net.Error](err)

	return ok
}
