// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"fmt"
	"net/http"
)

// apiError is an error as Proxmox answers it: the text becomes the reason
// phrase of the status line and the message of the body.
type apiError struct {
	status int
	reason string
	fields map[string]string
	form   bodyForm
}

// bodyForm is what the body of an error is: pveproxy itself answers otherwise
// than the API's handlers.
type bodyForm int

const (
	bodyMessage bodyForm = iota // JSON, its message with a line end
	bodyPlain                   // JSON, its message without one
	bodyText                    // the reason as text
	bodyEmpty
)

// noMethod is the answer to a call that the API does not have.
func noMethod(method, path string) error {
	return &apiError{
		status: http.StatusNotImplemented, form: bodyPlain,
		reason: fmt.Sprintf("Method '%s %s' not implemented", method, path),
	}
}

// bare is an error without a body.
func bare(err error) error {
	if e, ok := err.(*apiError); ok { //nolint:errorlint // made here, bare
		e.form = bodyEmpty
	}
	return err
}

// noPermission is what a check of alternatives says: neither path nor privilege.
func noPermission() error {
	return &apiError{status: http.StatusForbidden, reason: "Permission check failed"}
}

func (e *apiError) Error() string { return fmt.Sprintf("%d %s", e.status, e.reason) }

// dief is Perl's die: a 500 with the text as its reason, or, inside a worker,
// the exit status of the task.
func dief(format string, args ...any) error {
	return &apiError{status: http.StatusInternalServerError, reason: fmt.Sprintf(format, args...)}
}

// badParam is one field that failed the parameter check.
func badParam(field, format string, args ...any) error {
	return badParams(map[string]string{field: fmt.Sprintf(format, args...)})
}

func badParams(fields map[string]string) error {
	return &apiError{status: http.StatusBadRequest, reason: "Parameter verification failed.", fields: fields}
}

func forbidden(path, priv string) error {
	return &apiError{
		status: http.StatusForbidden,
		reason: fmt.Sprintf("Permission check failed (%s, %s)", path, priv),
	}
}

func unauthorized(reason string) error {
	return &apiError{status: http.StatusUnauthorized, reason: reason}
}

// noConf is what reading the configuration of a VM that is not there says.
func noConf(node string, vmid int) error {
	return dief("Configuration file 'nodes/%s/qemu-server/%d.conf' does not exist", node, vmid)
}

// lockTimeout is what waiting in vain for a VM's configuration lock says.
func lockTimeout(vmid int) error {
	return dief("can't lock file '/var/lock/qemu-server/lock-%d.conf' - got timeout", vmid)
}

// reasonOf is the text of an error without its status.
func reasonOf(err error) string {
	if e, ok := err.(*apiError); ok { //nolint:errorlint // handlers return it bare
		return e.reason
	}
	return err.Error()
}
