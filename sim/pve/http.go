// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"bytes"
	"crypto/md5" // #nosec G501 -- a name of a file
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// maxHeaders and maxHeaderSize are the limits of pveproxy, which closes the connection of a larger request.
	maxHeaders    = 64
	maxHeaderSize = 8 << 10
	// maxPost is the maximum size of a POST body that is not an upload (512 KiB since
	// libpve-http-server-perl 5.1).
	maxPost = 512 << 10
	// workerTimeout is how long the node-to-node proxy waits for a response.
	workerTimeout = 30 * time.Second
)

// listPage is a page of a list and the length of the whole list.
type listPage struct {
	rows  []map[string]any
	total int
}

// plainText is a response that is not JSON.
type plainText string

// upload is the file part of a multipart request.
type upload struct {
	id       string // of the temporary file
	filename string
	data     []byte
}

// ServeHTTP serves one API call.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if redirectPlain(w, r) {
		return
	}
	// A real cluster completes a call even if the client has disconnected.
	c := &call{ctx: s.ctx, method: r.Method, path: r.URL.Path, node: s.getEntryNode()}
	if isHeaderTooLarge(r.Header) {
		cutConnection(w)
		return
	}
	data, err := s.serve(c, r)
	drainBody(r)
	s.recordCallEnd(c, err)
	if findFault(c.faults, FaultCutConnection) != nil {
		cutConnection(w)
		return
	}
	if socket, ok := data.(webSocket); ok && err == nil && r.Header.Get("Upgrade") != "" {
		s.upgrade(w, r, c, socket)
		return
	}
	s.writeResponse(w, c, data, err)
}

// serve runs a call through the stages of pveproxy: find the route, authenticate, parse the
// parameters, wait for a worker, check the permissions, validate the parameters, and run the handler.
func (s *Server) serve(c *call, r *http.Request) (any, error) {
	rel, err := c.cutFormat()
	if err != nil {
		s.recordViolation(c, "no such path")
		return nil, err
	}
	c.path = rel
	c.route, c.vars = s.findRoute(c.method, rel)
	s.resolveTarget(c)
	s.recordCallStart(c)
	if !slices.Contains([]string{"GET", "POST", "PUT", "DELETE"}, c.method) {
		s.recordViolation(c, "unknown method")
		return nil, withoutBody(&apiError{status: http.StatusNotImplemented, reason: "method '" + c.method + "' not available"})
	}
	if err := s.authenticate(c, r); err != nil {
		s.sleep(c.ctx, s.model.Delays.LoginFailure)
		return nil, withoutBody(err)
	}
	if slices.Contains([]string{"/access/password", "/access/ticket"}, c.path) && isWrite(c.method) && c.auth.token != "" {
		return nil, &apiError{status: http.StatusForbidden, reason: "Permission check failed (URI '" + c.path + "' " +
			"not available with API token, need proper ticket.\n)"}
	}
	if err := s.checkUploadPermission(c); err != nil {
		return nil, withoutBody(err)
	}
	if err := readParams(c, r); err != nil {
		return nil, err
	}
	if c.route == nil {
		s.recordViolation(c, "unknown call")
		return nil, newMethodError(c.method, rel)
	}
	if !s.sleep(c.ctx, s.model.Delays.Call) {
		return nil, errClientGone
	}
	release, err := s.acquireWorker(c)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := s.applyFaults(c); err != nil {
		return nil, err
	}
	data, err := s.runHandler(c)
	if f := findFault(c.faults, FaultProxyTimeout); f != nil {
		s.sleep(c.ctx, f.Delay)
		return nil, &apiError{status: statusProxyTimeout, reason: f.reasonOr("Connection timed out")}
	}
	return data, err
}

// isHeaderTooLarge reports whether a request exceeds the limits of pveproxy.
func isHeaderTooLarge(header http.Header) bool {
	lines, size := 0, 0
	for name, values := range header {
		for _, value := range values {
			lines, size = lines+1, size+len(name)+len(value)+len(": \r\n")
		}
	}
	return lines > maxHeaders || size > maxHeaderSize
}

// cutFormat sets the format of the response and returns the path below /api2/FORMAT.
func (c *call) cutFormat() (string, error) {
	rest, isAPI := strings.CutPrefix(c.path, "/api2")
	format, rel, hasPath := strings.Cut(strings.TrimPrefix(rest, "/"), "/")
	switch {
	case !isAPI || rest != "" && rest[0] != '/':
		return "", newPlainError("no such file '%s'", c.path)
	case format == "":
		return "", &apiError{status: http.StatusNotImplemented, form: bodyText, reason: "no such uri"}
	case !hasPath && format != formatJSON || !slices.Contains([]string{formatJSON, formatExtJS, formatPNG}, format):
		return "", &apiError{status: http.StatusNotImplemented, form: bodyText, reason: "no formatter for uri /" + rel + ", " + format}
	}
	c.format = format
	return "/" + rel, nil
}

// The formats of a response. Ext JS gets errors of the API in responses with the status 200.
const (
	formatJSON  = "json"
	formatExtJS = "extjs"
	formatPNG   = "png"
)

var errClientGone = errors.New("the client has disconnected")

// resolveTarget sets the node and the VM of a call.
func (s *Server) resolveTarget(c *call) {
	if c.route == nil {
		return
	}
	if n := c.vars["node"]; n != "" {
		if n == "localhost" {
			n = s.getEntryNode()
			c.vars["node"] = n
		}
		c.node = n
	}
	c.vmid, _ = strconv.Atoi(c.vars["vmid"])
}

// acquireWorker waits for one of the node's API workers and returns a function that releases the
// worker.
func (s *Server) acquireWorker(c *call) (func(), error) {
	s.mu.Lock()
	n := s.nodes[c.node]
	if n != nil && c.upload != nil { // the entry node handles uploads itself
		n = s.nodes[s.findEntryNode()]
	}
	s.mu.Unlock()
	if n == nil {
		return nil, newLookupError(c.node)
	}
	if err := s.failUnreachable(c, n); err != nil {
		return nil, err
	}
	limit := s.model.Limits.WorkersPerNode
	if limit <= 0 {
		return func() {}, nil
	}
	release, err := s.locks.acquire(c.ctx, "worker/"+n.Name, limit, workerTimeout)
	if errors.Is(err, errLockTimeout) {
		return nil, &apiError{status: statusProxyTimeout, reason: "Connection timed out"}
	}
	return release, err
}

// newLookupError returns the response to a call for a node that is not a member.
func newLookupError(name string) error {
	const maxLabel = 63
	host, domain, _ := strings.Cut(name, ".")
	reason := "Temporary failure in name resolution"
	switch {
	case domain == exampleDomain && checkNodeName(host) == nil: // a node, but not by the name in its certificate
		return withoutBody(&apiError{status: statusProxyTimeout, reason: "error:0A000086:SSL routines::certificate verify failed"})
	case net.ParseIP(name) != nil:
		return dief("address lookup for '%s' did not find any IP address", name)
	case strings.HasPrefix(name, "-") || host == "" || len(host) > maxLabel: // no name of a host
		reason = "Name or service not known"
	}
	return dief("hostname lookup '%s' failed - failed to get address info for: %s: %s", name, name, reason)
}

// checkUploadPermission checks the permission for an upload before the file is read, as pveproxy
// does.
func (s *Server) checkUploadPermission(c *call) error {
	if c.route == nil || c.method != http.MethodPost || !strings.HasSuffix(c.path, "/upload") || c.auth.isRoot() {
		return nil
	}
	return s.require(c.auth, "/storage/"+c.vars["storage"], "Datastore.AllocateTemplate")
}

// runHandler checks the permissions and the parameters of a call and runs its handler.
func (s *Server) runHandler(c *call) (any, error) {
	for k, v := range c.vars { // a variable of the path can be a parameter too if the values are equal
		if p, ok := c.params[k]; ok && p != v {
			return nil, newParamError(k, "duplicate parameter (already defined in URI) with conflicting values!")
		}
		delete(c.params, k)
	}
	if c.route.perm != nil && !c.auth.isRoot() { // root needs no permission
		if err := c.route.perm(s, c); err != nil {
			return nil, err
		}
	}
	if fields := (schema{"vmid": newVMIDParam()}).validate(selectKey(c.vars, "vmid")); len(fields) > 0 {
		return nil, newParamsError(fields)
	}
	if !c.route.freeParams {
		fields := c.route.params.validate(c.params)
		for k, values := range c.lists {
			if p, ok := c.route.params[k]; ok && len(values) > 1 && !p.list {
				fields[k] = p.newTypeError("ARRAY")
			}
		}
		if len(fields) > 0 {
			return nil, newParamsError(fields)
		}
	}
	if err := s.checkQuorum(c); err != nil {
		return nil, err
	}
	return c.route.handle(s, c)
}

func selectKey(m map[string]string, key string) map[string]string {
	if v, ok := m[key]; ok {
		return map[string]string{key: v}
	}
	return nil
}

// readParams reads the parameters of the query and of the body.
func readParams(c *call, r *http.Request) error {
	c.params, c.lists = map[string]string{}, map[string][]string{}
	query, err := url.ParseQuery(escapeStrayPercents(r.URL.RawQuery))
	if err != nil {
		return dief("unable to parse query: %s", err)
	}
	c.addParams(query)
	delete(c.params, "_dc") // with which a browser avoids its cache
	if !isWrite(c.method) || c.method == http.MethodDelete {
		if r.ContentLength > 0 || len(r.TransferEncoding) > 0 {
			return &apiError{
				status: http.StatusNotImplemented, form: bodyText,
				reason: fmt.Sprintf("Unexpected content for method '%s'", c.method),
			}
		}
		return nil
	}
	if len(r.TransferEncoding) > 0 {
		return &apiError{status: http.StatusNotImplemented, form: bodyText, reason: "chunked transfer encoding not supported"}
	}
	isUpload := strings.HasSuffix(c.path, "/upload")
	ctype, args, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch {
	case isUpload && r.ContentLength > 0 && (ctype != "multipart/form-data" || args["boundary"] == ""):
		return errClientGone
	case isUpload && ctype == "multipart/form-data":
		return readMultipart(c, r, args["boundary"])
	case r.ContentLength > maxPost:
		return &apiError{status: http.StatusNotImplemented, form: bodyText, reason: "for data too large"}
	case ctype == "application/json":
		return readJSON(c, r.Body)
	case ctype != "" && ctype != "application/x-www-form-urlencoded" && r.ContentLength > 0:
		return &apiError{status: http.StatusVariantAlsoNegotiates, form: bodyText,
			reason: fmt.Sprintf("upload 'Content-Type '%s' not implemented", r.Header.Get("Content-Type"))}
	default:
		return readForm(c, r.Body)
	}
}

// escapeStrayPercents escapes each percent sign of a query that does not begin an escape, so that it stands for itself.
func escapeStrayPercents(query string) string {
	var b strings.Builder
	for i, char := range []byte(query) {
		b.WriteByte(char)
		if char != '%' {
			continue
		}
		if _, err := hex.DecodeString(query[i+1 : min(i+3, len(query))]); err != nil || i+3 > len(query) {
			b.WriteString("25")
		}
	}
	return b.String()
}

func (c *call) addParams(values url.Values) {
	for k, v := range values {
		c.params[k], c.lists[k] = v[len(v)-1], v
	}
}

func readForm(c *call, body io.Reader) error {
	raw, err := io.ReadAll(io.LimitReader(body, maxPost+1))
	if err != nil {
		return errClientGone
	}
	form, err := url.ParseQuery(string(raw))
	if err != nil {
		return dief("unable to parse form: %s", err)
	}
	c.addParams(form)
	return nil
}

func readJSON(c *call, body io.Reader) error {
	raw, err := io.ReadAll(io.LimitReader(body, maxPost+1))
	if err != nil {
		return errClientGone
	}
	if text := string(bytes.TrimSpace(raw)); text == "" || text == "null" { // Perl makes a hash of what is undefined
		return nil
	}
	obj, err := decodeObject(raw)
	if err != nil {
		return err
	}
	for k, v := range obj {
		p := c.findParam(k)
		list, isList := decodeStringList(v)
		switch {
		case v == nil:
			c.undefined = append(c.undefined, k)
		case isList && p.list:
			c.lists[k], c.params[k] = list, strings.Join(list, " ")
		default:
			c.params[k] = p.stringify(v)
		}
	}
	return nil
}

// findParam returns the schema of a parameter, which can be an option of a VM's configuration.
func (c *call) findParam(name string) param {
	if c.route == nil {
		return param{}
	}
	if p, ok := c.route.params[name]; ok {
		return p
	}
	o, _ := findOption(name)
	return o.param
}

// decodeObject decodes a JSON object. Its errors are those of Perl.
func decodeObject(raw []byte) (map[string]any, error) {
	const file = "/usr/share/perl5/PVE/APIServer/AnyEvent.pm"
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var value any
	err := dec.Decode(&value)
	if err == nil {
		if object, ok := value.(map[string]any); ok {
			return object, nil
		}
		return nil, newPlainError("Not a HASH reference at %s line 978.", file)
	}
	rest, offset := "(end of string)", int64(len(raw))
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) && syntax.Offset > 0 && syntax.Offset < offset {
		offset = syntax.Offset - 1
		rest = string(raw[offset:])
	}
	return nil, newPlainError("malformed JSON string, neither tag, array, object, number, string or atom, at character offset %d "+
		"(before %q) at %s line 934.", offset, rest, file)
}

// newPlainError returns the response to an error outside of the handlers: its text and a line feed.
func newPlainError(format string, args ...any) error {
	return &apiError{status: http.StatusInternalServerError, form: bodyLine, reason: fmt.Sprintf(format, args...)}
}

// noUpload is the response to an upload without a file.
const noUpload = "upload failed at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line 1370."

// readMultipart reads an upload. The fields come first, and the file part "filename" comes last.
func readMultipart(c *call, r *http.Request, boundary string) error {
	mr := multipart.NewReader(r.Body, boundary)
	for {
		part, err := mr.NextPart()
		switch {
		case errors.Is(err, io.EOF) && c.upload == nil:
			return &apiError{status: http.StatusInternalServerError, form: bodyLine, reason: noUpload}
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return dief("upload failed: %s", err)
		}
		data, err := io.ReadAll(part)
		if err != nil {
			return errClientGone
		}
		if c.upload != nil {
			return nil // what follows the file is not read
		}
		if part.FormName() == "filename" {
			if part.FileName() == "" {
				return &apiError{status: http.StatusInternalServerError, form: bodyLine, reason: noUpload}
			}
			c.upload = &upload{
				id: fmt.Sprintf("%x", md5.Sum(data)), filename: part.FileName(), data: data, // #nosec G401 -- a name
			}
			c.params["filename"] = part.FileName()
			continue
		}
		if !slices.Contains([]string{"content", "checksum", "checksum-algorithm", "tmpfilename"}, part.FormName()) {
			return withoutBody(&apiError{status: http.StatusBadRequest, reason: "Bad Request"})
		}
		c.params[part.FormName()] = string(data)
	}
}

// writeResponse writes the response. The status line of an error contains the error's text. net/http
// cannot write such a status line, so writeResponse hijacks the connection for an error.
func (s *Server) writeResponse(w http.ResponseWriter, c *call, data any, err error) {
	if errors.Is(err, errClientGone) || c.ctx.Err() != nil {
		cutConnection(w)
		return
	}
	if err == nil {
		if text, ok := data.(plainText); ok {
			w.Header().Set("Content-Type", "text/plain")
			_, _ = w.Write([]byte(text))
			return
		}
		if c.format == formatPNG {
			w.Header().Set("Content-Type", "image/png")
			return
		}
		out := map[string]any{"data": data}
		if rows, ok := data.(listPage); ok {
			out = map[string]any{"data": rows.rows, "total": rows.total}
		}
		if c.format == formatExtJS {
			out["success"] = 1
		}
		body, merr := json.Marshal(out)
		if merr == nil {
			w.Header().Set("Content-Type", "application/json;charset=UTF-8")
			if c.upload != nil {
				w.Header().Set("Connection", "close")
			}
			_, _ = w.Write(append(body, '\n'))
			return
		}
		err = dief("encode response: %s", merr)
	}
	var e *apiError
	if !errors.As(err, &e) {
		e = &apiError{status: http.StatusInternalServerError, reason: err.Error()}
	}
	if c.format == formatExtJS && (e.form == bodyMessage || e.form == bodyPlain) {
		writeExtJSError(w, e)
		return
	}
	writeError(w, e)
}

// writeExtJSError writes an error as Ext JS expects it: in the body of a response with the status 200.
func writeExtJSError(w http.ResponseWriter, e *apiError) {
	body := map[string]any{"data": nil, "message": e.reason + "\n", "status": e.status, "success": 0}
	if len(e.fields) > 0 {
		body["errors"], body["status"] = e.fields, strconv.Itoa(e.status)
	}
	w.Header().Set("Content-Type", "application/json;charset=UTF-8")
	raw, _ := json.Marshal(body) //nolint:errchkjson // texts and numbers only
	_, _ = w.Write(append(raw, '\n'))
}

func writeError(w http.ResponseWriter, e *apiError) {
	raw, ctype := e.encodeBody()
	conn, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, string(raw), e.status) // in-memory recorders cannot be hijacked
		return
	}
	defer func() { _ = conn.Close() }()
	reason, _, _ := strings.Cut(e.reason, "\n") // a status line is one line
	_, _ = fmt.Fprintf(buf, "HTTP/1.1 %d %s\r\nCache-Control: max-age=0\r\nConnection: close\r\n"+
		"Server: pve-api-daemon/3.0\r\n%sContent-Length: %d\r\n\r\n%s",
		e.status, reason, ctype, len(raw), raw)
	_ = buf.Flush()
}

// encodeBody returns the body of an error response and the Content-Type header line.
func (e *apiError) encodeBody() (raw []byte, ctype string) {
	body := map[string]any{"data": nil, "message": e.reason + "\n"}
	switch e.form {
	case bodyEmpty:
		return nil, ""
	case bodyText:
		return []byte(e.reason), ""
	case bodyLine:
		return []byte(e.reason + "\n"), ""
	case bodyPlain:
		body["message"] = e.reason
	case bodyMessage:
	}
	if len(e.fields) > 0 {
		body["errors"] = e.fields
	}
	raw, _ = json.Marshal(body) //nolint:errchkjson // strings only
	return raw, "Content-Type: application/json;charset=UTF-8\r\n"
}

// cutConnection closes the connection without a response.
func cutConnection(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		_ = conn.Close()
	}
}
