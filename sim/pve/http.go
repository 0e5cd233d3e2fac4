// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	apiPrefix = "/api2/json"
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

// upload is the file part of a multipart request.
type upload struct {
	filename string
	data     []byte
}

// ServeHTTP serves one API call.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// A real cluster completes a call even if the client has disconnected.
	c := &call{ctx: s.ctx, method: r.Method, path: r.URL.Path, node: s.getEntryNode()}
	data, err := s.serve(c, r)
	drainBody(r.Body)
	s.recordCallEnd(c, err)
	if findFault(c.faults, FaultCutConnection) != nil {
		cutConnection(w)
		return
	}
	s.writeResponse(w, c, data, err)
}

// serve runs a call through the stages of pveproxy: find the route, authenticate, parse the
// parameters, wait for a worker, check the permissions, validate the parameters, and run the handler.
func (s *Server) serve(c *call, r *http.Request) (any, error) {
	rel, ok := strings.CutPrefix(c.path, apiPrefix)
	if !ok {
		s.recordViolation(c, "no such file")
		return nil, &apiError{status: http.StatusNotFound, reason: "no such file '" + c.path + "'"}
	}
	c.path = rel
	c.route, c.vars = s.findRoute(c.method, rel)
	s.resolveTarget(c)
	s.recordCallStart(c)
	if !slices.Contains([]string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"}, c.method) {
		s.recordViolation(c, "unknown method")
		return nil, withoutBody(&apiError{status: http.StatusNotImplemented, reason: "method '" + c.method + "' not available"})
	}
	if err := s.authenticate(c, r); err != nil {
		s.sleep(c.ctx, s.model.Delays.LoginFailure)
		return nil, withoutBody(err)
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
		return nil, dief("hostname lookup '%s' failed - failed to get address info for: %s: Name or service not known",
			c.node, c.node)
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
		if fields := c.route.params.validate(c.params); len(fields) > 0 {
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
	for k, v := range r.URL.Query() {
		c.params[k] = v[len(v)-1]
	}
	if !isWrite(c.method) || c.method == http.MethodDelete {
		if r.ContentLength > 0 || len(r.TransferEncoding) > 0 {
			return &apiError{
				status: http.StatusNotImplemented, form: bodyText,
				reason: fmt.Sprintf("Unexpected content for method '%s'", c.method),
			}
		}
		return nil
	}
	ctype, args, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil && r.ContentLength > 0 {
		return dief("no content type")
	}
	switch {
	case ctype == "multipart/form-data":
		return readMultipart(c, r, args["boundary"])
	case r.ContentLength > maxPost:
		return &apiError{status: http.StatusNotImplemented, reason: "for data too large"}
	case ctype == "application/json":
		return readJSON(c, r.Body)
	default:
		return readForm(c, r.Body)
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
	for k, v := range form {
		c.params[k], c.lists[k] = v[len(v)-1], v
	}
	return nil
}

func readJSON(c *call, body io.Reader) error {
	raw, err := io.ReadAll(io.LimitReader(body, maxPost+1))
	if err != nil {
		return errClientGone
	}
	if len(bytes.TrimSpace(raw)) == 0 {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var obj map[string]any
	if err := dec.Decode(&obj); err != nil {
		return dief("malformed JSON string: %s", err)
	}
	for k, v := range obj {
		if v == nil {
			continue
		}
		if list, ok := decodeStringList(v); ok && c.route != nil && c.route.params[k].list {
			c.lists[k], c.params[k] = list, strings.Join(list, " ")
			continue
		}
		text, ok := stringify(v)
		if !ok {
			return newParamError(k, "type check ('string') failed - got %T", v)
		}
		c.params[k] = text
	}
	return nil
}

// readMultipart reads an upload. The fields come first, and the file part "filename" comes last.
func readMultipart(c *call, r *http.Request, boundary string) error {
	mr := multipart.NewReader(r.Body, boundary)
	for {
		part, err := mr.NextPart()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return dief("upload failed: %s", err)
		}
		data, err := io.ReadAll(part)
		if err != nil {
			return errClientGone
		}
		if c.upload != nil {
			return dief("upload failed: the file must be the last part")
		}
		if part.FormName() == "filename" {
			c.upload = &upload{filename: part.FileName(), data: data}
			c.params["filename"] = part.FileName()
			continue
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
		out := map[string]any{"data": data}
		if rows, ok := data.(listPage); ok {
			out = map[string]any{"data": rows.rows, "total": rows.total}
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
	writeError(w, e)
}

func writeError(w http.ResponseWriter, e *apiError) {
	raw, ctype := e.encodeBody()
	conn, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, string(raw), e.status) // in-memory recorders cannot be hijacked
		return
	}
	defer func() { _ = conn.Close() }()
	reason := strings.NewReplacer("\r", " ", "\n", " ").Replace(e.reason)
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
