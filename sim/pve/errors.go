// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"fmt"
	"net/http"
)

// apiError is an error response of Proxmox VE. The reason becomes the reason phrase of the status
// line and the message of the body.
type apiError struct {
	status int
	reason string
	fields map[string]string
	form   bodyForm
}

// bodyForm is the form of an error's body. pveproxy itself uses other forms than the handlers of the
// API.
type bodyForm int

const (
	bodyMessage bodyForm = iota // JSON; the message ends with a line feed
	bodyPlain                   // JSON; the message does not end with a line feed
	bodyText                    // the reason as text
	bodyLine                    // the reason as text, with a line feed
	bodyEmpty
)

// newMethodError returns the response for a call that the API does not have.
func newMethodError(method, path string) error {
	return &apiError{
		status: http.StatusNotImplemented, form: bodyPlain,
		reason: fmt.Sprintf("Method '%s %s' not implemented", method, path),
	}
}

// withoutBody removes the body of an error response.
func withoutBody(err error) error {
	if e, ok := err.(*apiError); ok { //nolint:errorlint // created in this package, never wrapped
		e.form = bodyEmpty
	}
	return err
}

// newPermissionError returns the response of a check with alternatives, which names neither path nor
// privilege.
func newPermissionError() error {
	return &apiError{status: http.StatusForbidden, reason: "Permission check failed"}
}

func (e *apiError) Error() string { return fmt.Sprintf("%d %s", e.status, e.reason) }

// dief returns the error of Perl's die: a response with the status 500 and the text as its reason.
// In a worker, the text becomes the exit status of the task.
func dief(format string, args ...any) error {
	return &apiError{status: http.StatusInternalServerError, reason: fmt.Sprintf(format, args...)}
}

// newParamError returns the response for one field that the parameter validation has refused.
func newParamError(field, format string, args ...any) error {
	return newParamsError(map[string]string{field: fmt.Sprintf(format, args...)})
}

func newParamsError(fields map[string]string) error {
	return &apiError{status: http.StatusBadRequest, reason: "Parameter verification failed.", fields: fields}
}

func newForbiddenError(path, priv string) error {
	return &apiError{
		status: http.StatusForbidden,
		reason: fmt.Sprintf("Permission check failed (%s, %s)", path, priv),
	}
}

func newUnauthorizedError(reason string) error {
	return &apiError{status: http.StatusUnauthorized, reason: reason}
}

// newNoConfigError returns the error for the configuration file of a missing VM.
func newNoConfigError(node string, vmid int) error {
	return dief("Configuration file 'nodes/%s/qemu-server/%d.conf' does not exist", node, vmid)
}

// newNoVMError returns the error for a missing VM of the calls that look for the VM before they read its file.
func newNoVMError(node string, vmid int) error {
	return dief("unable to find configuration file for VM %d on node '%s'", vmid, node)
}

// newLockTimeoutError returns the error for a timeout of a VM's configuration lock.
func newLockTimeoutError(vmid int) error {
	return dief("can't lock file '/var/lock/qemu-server/lock-%d.conf' - got timeout", vmid)
}

// errorReason returns the text of an error without its status.
func errorReason(err error) string {
	if e, ok := err.(*apiError); ok { //nolint:errorlint // handlers do not wrap it
		return e.reason
	}
	return err.Error()
}
