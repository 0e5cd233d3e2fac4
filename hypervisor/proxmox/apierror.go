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

// APIError is an error answer of Proxmox. Its text stands in the reason phrase of the
// status line, from PVE 8.4 on also in the body.
type APIError struct {
	Method, Path string
	Status       int
	// Reason is the text, e.g. "VM is locked (clone)".
	Reason string
	// Fields are the parameters refused (status 400), by name.
	Fields map[string]string
}

// Error gives the text with the parameters refused.
func (e *APIError) Error() string {
	parts := []string{fmt.Sprintf("%s %s: %d %s", e.Method, e.Path, e.Status, e.Reason)}
	for _, name := range slices.Sorted(maps.Keys(e.Fields)) {
		parts = append(parts, name+": "+e.Fields[name])
	}

	return strings.Join(parts, " ")
}

const maxErrorBody = 64 << 10

// readAPIError makes an APIError of an answer and closes its body.
func readAPIError(req *http.Request, res *http.Response) *APIError {
	defer func() { _ = res.Body.Close() }()

	e := &APIError{Method: req.Method, Path: apiPath(req), Status: res.StatusCode}

	// Status is "500 can't lock file ..."; the code is cut off.
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

	// A server that repeats what it was asked with, a proxy in between for one, would have
	// the credential told to whoever reads conditions, logs or traces.
	hide := hider(req)
	e.Reason = hide.Replace(e.Reason)

	for name, text := range e.Fields {
		e.Fields[name] = hide.Replace(text)
	}

	return e
}

// shortestSecret is the length of what is taken for a credential: less would be found in
// words that are none.
const shortestSecret = 4

// hider replaces the credentials that a request was sent with.
func hider(req *http.Request) *strings.Replacer {
	var pairs []string

	add := func(secret string) {
		if len(secret) >= shortestSecret {
			pairs = append(pairs, secret, log.Redacted, url.QueryEscape(secret), log.Redacted)
		}
	}

	// PVEAPIToken=USER@REALM!TOKENID=SECRET
	authorization := req.Header.Get("Authorization")
	add(authorization[strings.LastIndex(authorization, "=")+1:])
	add(req.Header.Get("Csrfpreventiontoken"))

	for _, cookie := range req.Cookies() {
		add(cookie.Value)
	}

	if apiPath(req) == "/access/ticket" {
		add(passwordOf(req))
	}

	return strings.NewReplacer(pairs...)
}

// passwordOf is the password of a login, in either of the forms that the API takes.
func passwordOf(req *http.Request) string {
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

// Statuses that Proxmox's node-to-node proxy answers with (AnyEvent::HTTP).
const (
	statusProxyConnect = 595
	statusProxySend    = 596
	statusProxyOther   = 599
)

// retryable tells whether a status says that another try may be answered soon.
func retryable(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	default:
		return false
	}
}

// silent tells whether a status says that a node did not answer the one that was asked:
// after 30 s for one that hangs or was cut off, so that another try is dear.
func silent(status int) bool { return status >= statusProxyConnect && status <= statusProxyOther }

// errorWord maps a text of Proxmox to what it means for the caller.
type errorWord struct {
	text   string
	kind   hypervisor.Kind
	reason string
}

// Reasons of errors, shown to people.
const (
	reasonLocked      = "Locked"
	reasonOverloaded  = "Overloaded"
	reasonStorageFull = "StorageFull"
	reasonGone        = "NotFound"
	reasonTaken       = "IDTaken"
	reasonChanged     = "ChangedMeanwhile"
	reasonRunning     = "StillRunning"
	reasonNoSpace     = "NoMemory"
	reasonDenied      = "PermissionDenied"
	reasonStale       = "StatusStale"
	reasonQuorum      = "NoQuorum"
	reasonNoNode      = "NoNodeUsable"
	reasonSilent      = "NodeUnreachable"
	reasonNodeLost    = "NodeLost"
	reasonNotOnNode   = "TemplateNotOnNode"
)

// errorWords are the texts of qemu-server, pve-storage and pve-cluster, in order: the
// first that is found counts.
func errorWords() []errorWord {
	return []errorWord{
		{"config file already exists", hypervisor.IDTaken, reasonTaken},
		{"already exists on node", hypervisor.IDTaken, reasonTaken},
		{"got timeout", hypervisor.Busy, reasonLocked},
		{"got lock request timeout", hypervisor.Busy, reasonLocked},
		{"VM is locked", hypervisor.Busy, reasonLocked},
		// A node with too much to do; the worker has done nothing (PVE::RESTEnvironment).
		{"start worker failed", hypervisor.Busy, reasonOverloaded},
		{"starting worker failed", hypervisor.Busy, reasonOverloaded},
		{"can't lock file", hypervisor.Busy, reasonLocked},
		{"detected modified configuration", hypervisor.Busy, reasonChanged},
		{"is running - destroy failed", hypervisor.Busy, reasonRunning},
		{"no quorum", hypervisor.Unavailable, reasonQuorum},
		{"no space left", hypervisor.NoCapacity, reasonStorageFull},
		{"No space left", hypervisor.NoCapacity, reasonStorageFull},
		{"insufficient free space", hypervisor.NoCapacity, reasonStorageFull},
		{"not enough free space", hypervisor.NoCapacity, reasonStorageFull},
		{"out of space", hypervisor.NoCapacity, reasonStorageFull},
		// "Cannot create new thin volume, free space in thin pool pve/data reached threshold." (lvm2).
		{"reached threshold", hypervisor.NoCapacity, reasonStorageFull},
		{"Cannot allocate memory", hypervisor.NoCapacity, reasonNoSpace},
		{"no such task", hypervisor.NotFound, reasonGone},
	}
}

// noConfig matches the answer about a VM that is not on the node asked.
var noConfig = regexp.MustCompile(
	`Configuration file 'nodes/[^/]+/qemu-server/\d+\.conf' does not exist`)

// kindOfText gives what a text of Proxmox means, with a reason for people.
func kindOfText(text string) (hypervisor.Kind, string) {
	if noConfig.MatchString(text) {
		return hypervisor.NotFound, reasonGone
	}

	for _, word := range errorWords() {
		if strings.Contains(text, word.text) {
			return word.kind, word.reason
		}
	}

	return "", ""
}

// vmIDTaken matches the parameter error about an id in use.
var vmIDTaken = regexp.MustCompile(`VM \d+ already exists`)

// busyAfter is how long to leave a busy lock alone; the client adds jitter.
const busyAfter = time.Second

// classify makes a hypervisor.Error of what a call gave. doing says what was attempted,
// as in "clone template 9001".
func (c *client) classify(doing, method string, err error) error {
	if err == nil {
		return nil
	}

	var known *hypervisor.Error
	if errors.As(err, &known) || errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w", doing, err)
	}

	if answer, ok := errors.AsType[*APIError](err); ok {
		return c.classifyAnswer(doing, method, answer)
	}

	if quiet, ok := errors.AsType[*silentError](err); ok {
		return &hypervisor.Error{
			Kind: hypervisor.Unavailable, Reason: reasonSilent, Err: err, Message: doing, After: quiet.after,
		}
	}

	return c.classifyTransport(doing, method, err)
}

func (c *client) classifyAnswer(doing, method string, answer *APIError) error {
	e := &hypervisor.Error{Message: doing, Err: answer}

	switch {
	case answer.Status == http.StatusUnauthorized:
		e.Kind, e.Reason = hypervisor.Rejected, "AuthenticationFailed"
		e.Message = fmt.Sprintf("%s: Proxmox refuses the credentials of %s: check the id and the secret, "+
			"and that neither user nor token is disabled or expired", doing, c.who())
	case answer.Status == http.StatusForbidden:
		e.Kind, e.Reason, e.Message = hypervisor.Rejected, reasonDenied, doing+": "+c.permissionFix(answer.Reason)
	case answer.Status == http.StatusTooManyRequests:
		e.Kind, e.Reason, e.After = hypervisor.Busy, "TooManyRequests", c.jitter(busyAfter)
	case retryable(answer.Status):
		e.Kind, e.Reason = outcome(method), "ProxyError"
	case silent(answer.Status):
		e.Kind, e.Reason, e.After = outcome(method), reasonSilent, c.jitter(silentFirst)
	case answer.Status == http.StatusNotImplemented:
		e.Kind, e.Reason = hypervisor.Rejected, "NotImplemented"
	case answer.Status == http.StatusBadRequest:
		e.Kind, e.Reason = hypervisor.Rejected, "ParameterRefused"

		if vmIDTaken.MatchString(answer.Error()) {
			e.Kind, e.Reason = hypervisor.IDTaken, reasonTaken
		}
	default:
		e.Kind, e.Reason = kindOfText(answer.Reason)
		if e.Kind == hypervisor.Busy {
			e.After = c.jitter(busyAfter)
		}
	}

	return e
}

// outcome is what a call without an answer means: a read can be tried again, of a write
// it isn't known whether it had its effect.
func outcome(method string) hypervisor.Kind {
	if method == http.MethodGet {
		return hypervisor.Unavailable
	}

	return hypervisor.UnknownOutcome
}

func (c *client) classifyTransport(doing, method string, err error) error {
	if certificate, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return &hypervisor.Error{
			Kind: hypervisor.Rejected, Reason: "CertificateUntrusted", Err: err,
			Message: fmt.Sprintf("%s: the certificate of %s is not trusted: set tls.caBundle to the "+
				"certificate authority's, or, after comparing it on the server, tls.fingerprint to %s",
				doing, c.host(), fingerprintOf(certificate)),
		}
	}

	if pin, ok := errors.AsType[*hypervisor.FingerprintError](err); ok {
		return &hypervisor.Error{
			Kind: hypervisor.Rejected, Reason: "CertificateUntrusted", Err: err,
			Message: fmt.Sprintf("%s: %s shows another certificate than the one pinned: if it was renewed, "+
				"compare it on the server and set tls.fingerprint to %s", doing, c.host(), pin.Got),
		}
	}

	kind := outcome(method)

	// A connection that was never made has had no effect.
	if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" {
		kind = hypervisor.Unavailable
	}

	if _, ok := errors.AsType[*net.DNSError](err); ok {
		kind = hypervisor.Unavailable
	}

	return &hypervisor.Error{
		Kind: kind, Reason: "Unreachable", Err: err,
		Message: fmt.Sprintf("%s: no answer from %s", doing, c.host()),
	}
}

// fingerprintOf gives the SHA-256 of the server's own certificate as Proxmox shows it.
func fingerprintOf(e *tls.CertificateVerificationError) string {
	if len(e.UnverifiedCertificates) == 0 {
		return "(no certificate was shown)"
	}

	return hypervisor.Fingerprint(sha256.Sum256(e.UnverifiedCertificates[0].Raw))
}

var permissionText = regexp.MustCompile(
	`\((/[^,]*), ([A-Za-z.|, ]+)\)`)

// permissionFix puts the answer "Permission check failed (/vms/100, VM.Audit)" in
// words with the command that fixes it.
func (c *client) permissionFix(reason string) string {
	found := permissionText.FindStringSubmatch(reason)
	if found == nil {
		return fmt.Sprintf("Proxmox denies it to %s (%s)", c.who(), reason)
	}

	return c.missing(found[1], privilegesOf(found[2]))
}

// privilegesOf are those that a denial names.
func privilegesOf(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == '|' || r == ',' || r == ' ' })
}

// explain names the privileges that are missing where Proxmox names none, as it does
// where one of several would do ("or" in PVE::RPCEnvironment) and for uploads. needs are
// those of the call.
func (c *client) explain(ctx context.Context, doing string, err error, needs ...need) error {
	answer, ok := errors.AsType[*APIError](err)
	if !ok || answer.Status != http.StatusForbidden || permissionText.MatchString(answer.Reason) {
		return err
	}

	held, heldErr := c.permissions(ctx)
	if heldErr != nil {
		return err
	}

	if words := c.unmet(held, needs); len(words) > 0 {
		return privilegesMissing(doing, words)
	}

	return err
}

// missing says which privileges are missing on a path, and the commands that grant them.
func (c *client) missing(path string, privileges []string) string {
	who, flag := c.who(), "--users"
	if strings.Contains(who, "!") {
		flag = "--tokens"
	}

	return fmt.Sprintf("%s lacks %s on %s; grant it with: pveum role add HyperFleet --privs %q "+
		"(or pveum role modify HyperFleet --append --privs ..., where the role exists) && "+
		"pveum acl modify %s %s '%s' --roles HyperFleet",
		who, strings.Join(privileges, ", "), path, strings.Join(privileges, " "), path, flag, who)
}
