// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"

	golibvirt "github.com/digitalocean/go-libvirt"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Parts of libvirt's messages for conditions that have no error code of their own.
const (
	textNoSpace     = "No space left on device"
	textNoQuota     = "Disk quota exceeded"
	textNoMemory    = "Cannot allocate memory"
	textMemorySetUp = "cannot set up guest memory"
	textNoDevice    = "No such device"
	textRunning     = "already running"
	textNoKVM       = "KVM"
	textBuilding    = "still being allocated"
	textNameInUse   = "already in use"
	textSSHAuth     = "unable to authenticate"
)

// writeCall and readCall are the values of the parameter isWrite.
const writeCall, readCall = true, false

// classify gives an error of a call its kind. action describes the call, and isWrite is true if the call
// changes something. It returns nil for a nil error, and an error that has a kind as it is.
func (h *host) classify(action string, isWrite bool, err error) error {
	if err == nil || hypervisor.KindOf(err) != "" {
		return err
	}

	kind, reason := classifyError(err, isWrite)
	if kind == "" {
		return fmt.Errorf("%s: %w", action, err)
	}

	return &hypervisor.Error{Kind: kind, Reason: reason, Message: action, Err: err}
}

// classifyError returns the kind and the reason of an error. The kind is "" for an error that the caller
// retries.
func classifyError(err error, isWrite bool) (hypervisor.Kind, string) {
	if e, ok := errors.AsType[golibvirt.Error](err); ok {
		return classifyLibvirtError(e)
	}

	switch {
	case errors.Is(err, context.Canceled):
		return "", ""
	case hypervisor.IsUntrusted(err):
		return hypervisor.Rejected, "CertificateUntrusted"
	case strings.Contains(err.Error(), textSSHAuth):
		return hypervisor.Rejected, "SSHLoginRefused"
	case errors.Is(err, golibvirt.ErrInterrupted), errors.Is(err, syscall.EINVAL), isNetworkError(err):
		if isWrite {
			return hypervisor.UnknownOutcome, "NoAnswer"
		}

		return hypervisor.Unavailable, "HostUnreachable"
	default:
		return "", ""
	}
}

// isNetworkError reports whether the connection failed, or was closed by the host or by a timeout.
func isNetworkError(err error) bool {
	_, ok := errors.AsType[net.Error](err)

	return ok || errors.Is(err, net.ErrClosed) || errors.Is(err, context.DeadlineExceeded)
}

// classifyLibvirtError returns the kind and the reason of an error that libvirtd has returned.
func classifyLibvirtError(e golibvirt.Error) (hypervisor.Kind, string) {
	switch {
	case strings.Contains(e.Message, textNoSpace), strings.Contains(e.Message, textNoQuota):
		return hypervisor.NoCapacity, "StorageFull"
	case strings.Contains(e.Message, textNoMemory), strings.Contains(e.Message, textMemorySetUp):
		return hypervisor.NoCapacity, "MemoryFull"
	case strings.Contains(e.Message, textNoDevice):
		return hypervisor.Rejected, "DeviceMissing"
	case strings.Contains(e.Message, textBuilding):
		return hypervisor.Busy, "VolumeBusy"
	}

	switch numberOf(e) {
	case golibvirt.ErrNoDomain, golibvirt.ErrNoStorageVol, golibvirt.ErrNoNetwork, golibvirt.ErrNoStoragePool:
		return hypervisor.NotFound, "NotFound"
	case golibvirt.ErrAuthFailed, golibvirt.ErrAuthCancelled, golibvirt.ErrAuthUnavailable,
		golibvirt.ErrAccessDenied, golibvirt.ErrOperationDenied:
		return hypervisor.Rejected, "AccessDenied"
	case golibvirt.ErrConfigUnsupported, golibvirt.ErrXMLError, golibvirt.ErrXMLDetail, golibvirt.ErrXMLInvalidSchema:
		return hypervisor.Rejected, "DefinitionRefused"
	case golibvirt.ErrOperationTimeout, golibvirt.ErrResourceBusy:
		return hypervisor.Busy, "Busy"
	case golibvirt.ErrNoMemory:
		return hypervisor.NoCapacity, "MemoryFull"
	default:
		return "", ""
	}
}

func numberOf(e golibvirt.Error) golibvirt.ErrorNumber {
	return golibvirt.ErrorNumber(e.Code) //nolint:gosec // a small number
}

// hasCode reports whether libvirtd has returned an error with one of the codes.
func hasCode(err error, codes ...golibvirt.ErrorNumber) bool {
	e, ok := errors.AsType[golibvirt.Error](err)

	return ok && slices.Contains(codes, numberOf(e))
}
