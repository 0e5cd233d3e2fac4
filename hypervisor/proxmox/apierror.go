// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/log"
)

// APIError is an error response of Proxmox. Proxmox writes the text in the reason phrase of the status
// line. Since PVE 8.4 the body has the text too.
type APIError struct {
	Method, Path string
	Status       int
	// Reason is the error text, such as "VM is locked (clone)".
	Reason string
	// Fields maps the rejected parameters (status 400) to their error texts.
	Fields map[string]string
}

// Error returns the error text with the rejected parameters.
func (e *APIError) Error() string {
	parts := []string{fmt.Sprintf("%s %s: %d %s", e.Method, e.Path, e.Status, e.Reason)}
	for _, name := range slices.Sorted(maps.Keys(e.Fields)) {
		parts = append(parts, name+": "+e.Fields[name])
	}

	return strings.Join(parts, " ")
}

const maxErrorBody = 64 << 10

// readAPIError converts a response to an APIError and closes the response body.
func readAPIError(req *http.Request, res *http.Response) *APIError {
	defer func() { _ = res.Body.Close() }()

	e := &APIError{Method: req.Method, Path: apiPath(req), Status: res.StatusCode}

	// Status is "500 can't lock file ...". Only the text after the code is kept.
	_, e.Reason, _ = strings.Cut(res.Status, " ")

	var body struct {
		Message string            `json:"message"`
		Errors  map[string]string `json:"errors"`
	}

	raw, err := io.ReadAll(io.LimitReader(res.Body, maxErrorBody))
	if err == nil && json.Unmarshal(bytes.TrimSpace(raw), &body) == nil {
		e.Fields = body.Errors

		if message := strings.TrimSpace(body.Message); message != "" {
			e.Reason = message
		}
	}

	if e.Reason == "" {
		e.Reason = http.StatusText(e.Status)
	}

	// A server or a proxy may repeat the request in its error text. Without redaction, the credential would
	// appear in conditions, logs and traces.
	redactor := newRedactor(req)
	e.Reason = redactor.Replace(e.Reason)

	for name, text := range e.Fields {
		e.Fields[name] = redactor.Replace(text)
	}

	return e
}

// minSecretLength is the shortest value that is redacted. A shorter value could match a part of an ordinary
// word.
const minSecretLength = 4

// newRedactor returns a replacer that redacts the credentials of a request.
func newRedactor(req *http.Request) *strings.Replacer {
	var pairs []string

	add := func(secret string) {
		if len(secret) >= minSecretLength {
			pairs = append(pairs, secret, log.Redacted, url.QueryEscape(secret), log.Redacted)
		}
	}

	// The header value is PVEAPIToken=USER@REALM!TOKENID=SECRET.
	authorization := req.Header.Get("Authorization")
	add(authorization[strings.LastIndex(authorization, "=")+1:])
	add(req.Header.Get("Csrfpreventiontoken"))

	for _, cookie := range req.Cookies() {
		add(cookie.Value)
	}

	if apiPath(req) == "/access/ticket" {
		add(loginPassword(req))
	}

	return strings.NewReplacer(pairs...)
}

// loginPassword returns the password of a login request with a JSON body or a form body, or "" if there is
// none.
func loginPassword(req *http.Request) string {
	if req.GetBody == nil {
		return ""
	}

	body, err := req.GetBody()
	if err != nil {
		return ""
	}

	defer func() { _ = body.Close() }()

	raw, err := io.ReadAll(io.LimitReader(body, maxErrorBody))
	if err != nil {
		return ""
	}

	var login struct {
		Password string `json:"password"`
	}
	if json.Unmarshal(raw, &login) == nil {
		return login.Password
	}

	form, err := url.ParseQuery(string(raw))
	if err != nil {
		return ""
	}

	return form.Get("password")
}

// These are the statuses that Proxmox's node-to-node proxy returns (AnyEvent::HTTP).
const (
	statusProxyConnect = 595
	statusProxySend    = 596
	statusProxyOther   = 599
)

// isRetryableStatus reports whether a request with this response status may succeed soon if it is retried.
func isRetryableStatus(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	default:
		return false
	}
}

// isUnresponsiveStatus reports whether a status means that the target node did not respond to the connected
// node. If the target node hangs or is cut off, Proxmox returns the status after 30 s, so a retry is
// expensive.
func isUnresponsiveStatus(status int) bool {
	return status >= statusProxyConnect && status <= statusProxyOther
}

// errorPattern maps a text of Proxmox to an error kind and a reason.
type errorPattern struct {
	text   string
	kind   hypervisor.Kind
	reason string
}

// Reasons of errors. Users see them in conditions.
const (
	reasonLocked            = "Locked"
	reasonReappeared        = "VMReappeared"
	reasonOverloaded        = "Overloaded"
	reasonStorageFull       = "StorageFull"
	reasonStorageInactive   = "StorageInactive"
	reasonStorageNotFound   = "StorageNotFound"
	reasonStorageWithoutISO = "StorageWithoutISO"
	reasonNotFound          = "NotFound"
	reasonIDTaken           = "IDTaken"
	reasonConflict          = "Conflict"
	reasonStillRunning      = "StillRunning"
	reasonNoMemory          = "NoMemory"
	reasonPermissionDenied  = "PermissionDenied"
	reasonStatusStale       = "StatusStale"
	reasonNoQuorum          = "NoQuorum"
	reasonNoUsableNode      = "NoNodeUsable"
	reasonNodeUnreachable   = "NodeUnreachable"
	reasonNodeLost          = "NodeLost"
	reasonNotImplemented    = "NotImplemented"
	reasonTemplateNotOnNode = "TemplateNotOnNode"
	reasonParameterRefused  = "ParameterRefused"
	reasonDeviceInUse       = "DeviceInUse"
	reasonDeviceInvalid     = "DeviceInvalid"
)

// errorPatterns returns the texts of qemu-server, pve-storage and pve-cluster. The first pattern that an
// error contains decides its kind.
func errorPatterns() []errorPattern {
	return []errorPattern{
		{"config file already exists", hypervisor.IDTaken, reasonIDTaken},
		{"already exists on node", hypervisor.IDTaken, reasonIDTaken},
		// Another node has created a VM with the ID since the call was checked.
		{".conf' failed: File exists", hypervisor.IDTaken, reasonIDTaken},
		{"qemu-img resize", hypervisor.Busy, reasonOverloaded},
		{"got timeout", hypervisor.Busy, reasonLocked},
		{"got lock request timeout", hypervisor.Busy, reasonLocked},
		{"VM is locked", hypervisor.Busy, reasonLocked},
		// The node is overloaded, and the worker has done nothing (PVE::RESTEnvironment).
		{"start worker failed", hypervisor.Busy, reasonOverloaded},
		{"starting worker failed", hypervisor.Busy, reasonOverloaded},
		{"can't lock file", hypervisor.Busy, reasonLocked},
		{"detected modified configuration", hypervisor.Busy, reasonConflict},
		{"checksum mismatch (file change by other user?)", hypervisor.Busy, reasonConflict},
		{"is running - destroy failed", hypervisor.Busy, reasonStillRunning},
		{"no quorum", hypervisor.Unavailable, reasonNoQuorum},
		// Without a quorum, /etc/pve is read-only.
		{".conf.tmp.", hypervisor.Unavailable, reasonNoQuorum},
		{"no such cluster node", hypervisor.Unavailable, reasonNodeUnreachable},
		{"hostname lookup", hypervisor.Unavailable, reasonNodeUnreachable},
		{"can't activate storage", hypervisor.Unavailable, reasonNodeUnreachable},
		{"no space left", hypervisor.NoCapacity, reasonStorageFull},
		{"No space left", hypervisor.NoCapacity, reasonStorageFull},
		{"insufficient free space", hypervisor.NoCapacity, reasonStorageFull},
		{"not enough free space", hypervisor.NoCapacity, reasonStorageFull},
		{"out of space", hypervisor.NoCapacity, reasonStorageFull},
		// lvm2: "Cannot create new thin volume, free space in thin pool pve/data reached threshold."
		{"reached threshold", hypervisor.NoCapacity, reasonStorageFull},
		{"Cannot allocate memory", hypervisor.NoCapacity, reasonNoMemory},
		{"could not find a free device for", hypervisor.NoCapacity, reasonDeviceInUse},
		{"already in use by VMID", hypervisor.NoCapacity, reasonDeviceInUse},
		{"is currently reserved for use by VMID", hypervisor.NoCapacity, reasonDeviceInUse},
		{"PCI device mapping", hypervisor.Rejected, reasonDeviceInvalid},
		{"no such task", hypervisor.NotFound, reasonNotFound},
		{"unable to find configuration file for VM", hypervisor.NotFound, reasonNotFound},
		// Values that pass the schema of the API. A repetition changes nothing.
		{"only root can ", hypervisor.Rejected, reasonParameterRefused},
		{"balloon value too large", hypervisor.Rejected, reasonParameterRefused},
		{"SSH public key validation error", hypervisor.Rejected, reasonParameterRefused},
		{"invalid bootorder", hypervisor.Rejected, reasonParameterRefused},
		{"cloud-init drive is already attached", hypervisor.Rejected, reasonParameterRefused},
		{"not allowed for linked clones", hypervisor.Rejected, reasonParameterRefused},
		{"(VM uses local storage)", hypervisor.Rejected, reasonParameterRefused},
		{"can't clone to non-shared storage", hypervisor.Rejected, reasonParameterRefused},
		{"shrinking disks is not supported", hypervisor.Rejected, reasonParameterRefused},
	}
}

// configMissingPattern matches the error about a VM that does not exist on the requested node.
var configMissingPattern = regexp.MustCompile(
	`Configuration file 'nodes/[^/]+/qemu-server/\d+\.conf' does not exist`)

// classifyText returns the kind and the reason of a Proxmox error text, or empty values if no pattern
// matches.
func classifyText(text string) (hypervisor.Kind, string) {
	if configMissingPattern.MatchString(text) {
		return hypervisor.NotFound, reasonNotFound
	}

	for _, pattern := range errorPatterns() {
		if strings.Contains(text, pattern.text) {
			return pattern.kind, pattern.reason
		}
	}

	return "", ""
}

// vmIDTakenPattern matches the parameter error about an ID that is in use.
var vmIDTakenPattern = regexp.MustCompile(`VM \d+ already exists`)

// busyRetryDelay is the delay before a busy operation is retried. The client adds jitter.
const busyRetryDelay = time.Second

// classify converts the error of a call to a hypervisor.Error. operation names what was attempted, such as
// "clone template 9001".
func (c *client) classify(operation, method string, err error) error {
	if err == nil {
		return nil
	}

	var known *hypervisor.Error
	if errors.As(err, &known) || errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w", operation, err)
	}

	if apiErr, ok := errors.AsType[*APIError](err); ok {
		return c.classifyAPIError(operation, method, apiErr)
	}

	if backoff, ok := errors.AsType[*nodeBackoffError](err); ok {
		return &hypervisor.Error{
			Kind: hypervisor.Unavailable, Reason: reasonNodeUnreachable, Err: err, Message: operation, RetryAfter: backoff.retryAfter,
		}
	}

	return c.classifyTransport(operation, method, err)
}

// classifyAPIError converts an error response of Proxmox VE to a hypervisor.Error. The status decides, or
// else the text of the error.
func (c *client) classifyAPIError(operation, method string, apiErr *APIError) error {
	e := &hypervisor.Error{Message: operation, Err: apiErr}

	switch {
	case apiErr.Status == http.StatusUnauthorized:
		e.Kind, e.Reason = hypervisor.Rejected, "AuthenticationFailed"
		e.Message = fmt.Sprintf("%s: Proxmox rejected the credentials of %s: check the id and the secret, "+
			"and make sure that neither the user nor the token is disabled or expired", operation, c.principal())
	case apiErr.Status == http.StatusForbidden:
		e.Kind, e.Reason, e.Message = hypervisor.Rejected, reasonPermissionDenied, operation+": "+c.explainDenial(apiErr.Reason)
	case apiErr.Status == http.StatusTooManyRequests:
		e.Kind, e.Reason, e.RetryAfter = hypervisor.Busy, "TooManyRequests", jitter(busyRetryDelay)
	case isRetryableStatus(apiErr.Status):
		e.Kind, e.Reason = kindWithoutResponse(method), "ProxyError"
	case isUnresponsiveStatus(apiErr.Status):
		e.Kind, e.Reason, e.RetryAfter = kindWithoutResponse(method), reasonNodeUnreachable, jitter(initialNodeBackoff)
	case apiErr.Status == http.StatusNotImplemented:
		e.Kind, e.Reason = hypervisor.Rejected, reasonNotImplemented
	case apiErr.Status == http.StatusBadRequest:
		e.Kind, e.Reason = hypervisor.Rejected, reasonParameterRefused

		if vmIDTakenPattern.MatchString(apiErr.Error()) {
			e.Kind, e.Reason = hypervisor.IDTaken, reasonIDTaken
		}
	default:
		e.Kind, e.Reason = classifyText(apiErr.Reason)
		if e.Kind == hypervisor.Busy {
			e.RetryAfter = jitter(busyRetryDelay)
		}
	}

	return e
}

// kindWithoutResponse returns the kind of a call that got no response. A read can be retried. After a write
// it is unknown whether the write took effect.
func kindWithoutResponse(method string) hypervisor.Kind {
	if method == http.MethodGet {
		return hypervisor.Unavailable
	}

	return hypervisor.UnknownOutcome
}

// classifyTransport converts the error of a request that got no response to a hypervisor.Error. If the
// connection was never established, the request had no effect, so the kind is Unavailable.
func (c *client) classifyTransport(operation, method string, err error) error {
	if certificate, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return &hypervisor.Error{
			Kind: hypervisor.Rejected, Reason: "CertificateUntrusted", Err: err,
			Message: fmt.Sprintf("%s: the certificate of %s is not trusted: set tls.caBundle to the certificate of "+
				"the certificate authority, or compare the fingerprint on the server and set tls.fingerprint to %s",
				operation, c.host(), certificateFingerprint(certificate)),
		}
	}

	if pin, ok := errors.AsType[*hypervisor.FingerprintError](err); ok {
		return &hypervisor.Error{
			Kind: hypervisor.Rejected, Reason: "CertificateUntrusted", Err: err,
			Message: fmt.Sprintf("%s: the certificate of %s does not match the pinned fingerprint: if the certificate was renewed, "+
				"compare the fingerprint on the server and set tls.fingerprint to %s", operation, c.host(), pin.Got),
		}
	}

	kind := kindWithoutResponse(method)

	if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" {
		kind = hypervisor.Unavailable
	}

	if _, ok := errors.AsType[*net.DNSError](err); ok {
		kind = hypervisor.Unavailable
	}

	return &hypervisor.Error{
		Kind: kind, Reason: "Unreachable", Err: err,
		Message: fmt.Sprintf("%s: no response from %s", operation, c.host()),
	}
}

// certificateFingerprint returns the SHA-256 of the server's own certificate in Proxmox's notation.
func certificateFingerprint(e *tls.CertificateVerificationError) string {
	if len(e.UnverifiedCertificates) == 0 {
		return "(the server sent no certificate)"
	}

	return hypervisor.FormatFingerprint(sha256.Sum256(e.UnverifiedCertificates[0].Raw))
}

var permissionPattern = regexp.MustCompile(
	`\((/[^,]*), ([A-Za-z.|, ]+)\)`)

// explainDenial converts an error such as "Permission check failed (/vms/100, VM.Audit)" to a message with
// the command that grants the privilege.
func (c *client) explainDenial(reason string) string {
	found := permissionPattern.FindStringSubmatch(reason)
	if found == nil {
		return fmt.Sprintf("Proxmox denied the request of %s (%s)", c.principal(), reason)
	}

	return c.describeMissingPrivileges(found[1], parsePrivileges(found[2]))
}

// parsePrivileges returns the privileges that a denial names.
func parsePrivileges(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == '|' || r == ',' || r == ' ' })
}

// explainForbidden adds the missing privileges to a 403 error that names none. Proxmox names no privilege
// if one of several privileges would suffice ("or" in PVE::RPCEnvironment), and for uploads. requirements
// are the privileges that the call needs. For all other errors, or if no privilege is missing,
// explainForbidden returns err unchanged.
func (c *client) explainForbidden(ctx context.Context, operation string, err error, requirements ...requirement) error {
	apiErr, ok := errors.AsType[*APIError](err)
	if !ok || apiErr.Status != http.StatusForbidden || permissionPattern.MatchString(apiErr.Reason) {
		return err
	}

	granted, permissionsErr := c.readPermissions(ctx)
	if permissionsErr != nil {
		return err
	}

	if problems := c.describeUnmet(granted, requirements); len(problems) > 0 {
		return newPrivilegesError(operation, problems)
	}

	return err
}

// describeMissingPrivileges returns a message that names the missing privileges on a path and the commands
// that grant them.
func (c *client) describeMissingPrivileges(path string, privileges []string) string {
	principal := c.principal()
	options := "--users '" + principal + "'"

	// A token with separate privileges has at most those of its user.
	if user, _, isToken := strings.Cut(principal, "!"); isToken {
		options = "--tokens '" + principal + "' --users '" + user + "'"
	}

	toGrant := privileges
	if strings.HasPrefix(path, "/vms/") && !slices.Contains(privileges, "VM.Audit") {
		// A role on a path replaces the roles that the path inherits, and without VM.Audit the VM is not visible.
		toGrant = append([]string{"VM.Audit"}, privileges...)
	}

	return fmt.Sprintf("%s lacks %s on %s: grant the privileges with: pveum role add HyperFleet --privs %q "+
		"(or pveum role modify HyperFleet --append --privs ..., if the role exists) && "+
		"pveum acl modify %s %s --roles HyperFleet",
		principal, strings.Join(privileges, ", "), path, strings.Join(toGrant, " "), path, options)
}
