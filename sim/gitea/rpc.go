// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitea

import (
	"crypto/subtle"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"time"
)

const (
	pingPath   = "/api/actions/ping.v1.PingService/"
	runnerPath = "/api/actions/runner.v1.RunnerService/"
)

// Codes of the Connect protocol and their statuses.
const (
	codeUnauthenticated = "unauthenticated"
	codeUnknown         = "unknown"
	codeUnavailable     = "unavailable"
	codeInvalid         = "invalid_argument"
)

func refuseRPC(code, message string) reply {
	status := map[string]int{
		codeUnauthenticated: http.StatusUnauthorized, codeUnavailable: http.StatusServiceUnavailable,
		codeInvalid: http.StatusBadRequest,
	}[code]
	if status == 0 {
		status = http.StatusInternalServerError
	}
	return reply{status: status, body: map[string]string{"code": code, "message": message}}
}

// number is an int64, which the Connect protocol writes as a text and reads in either form.
type number int64

// UnmarshalJSON reads either form.
func (n *number) UnmarshalJSON(text []byte) error {
	value, err := strconv.ParseInt(string(slices.DeleteFunc(slices.Clone(text), func(c byte) bool { return c == '"' })), 10, 64)
	*n = number(value)
	return err
}

// message is what a runner says in any of its calls.
type message struct {
	Data         string   `json:"data"`
	Name         string   `json:"name"`
	Token        string   `json:"token"`
	Version      string   `json:"version"`
	Labels       []string `json:"labels"`
	Capabilities []string `json:"capabilities"`
	Ephemeral    bool     `json:"ephemeral"`
	TasksVersion number   `json:"tasksVersion"`
	Handle       string   `json:"handle"`
	State        struct {
		ID        number    `json:"id"`
		Result    string    `json:"result"`
		StartedAt time.Time `json:"startedAt"`
		StoppedAt time.Time `json:"stoppedAt"`
		Steps     []any     `json:"steps"`
	} `json:"state"`
	Outputs map[string]string `json:"outputs"`
	TaskID  number            `json:"taskId"`
	Index   number            `json:"index"`
	Rows    []struct {
		Time    time.Time `json:"time"`
		Content string    `json:"content"`
	} `json:"rows"`
	NoMore bool `json:"noMore"`
}

// rpc is one call of a runner. by is nil in the calls before it is registered.
type rpc struct {
	r    *http.Request
	by   *runner
	said message
}

func rpcCalls() map[string]func(*Server, *rpc) reply {
	return map[string]func(*Server, *rpc) reply{
		pingPath + "Ping":              (*Server).answerPing,
		runnerPath + "Register":        (*Server).answerRegister,
		runnerPath + "Declare":         (*Server).answerDeclare,
		runnerPath + "FetchTask":       (*Server).answerFetch,
		runnerPath + "FetchSingleTask": (*Server).answerFetch,
		runnerPath + "UpdateTask":      (*Server).answerUpdateTask,
		runnerPath + "UpdateLog":       (*Server).answerUpdateLog,
	}
}

// machineCalls are the calls that machines make. Registrations are the operator's here.
func machineCalls() []string {
	var out []string
	for path := range rpcCalls() {
		if path != runnerPath+"Register" {
			out = append(out, path)
		}
	}
	slices.Sort(out)
	return out
}

func (s *Server) rpcRoutes(mux *http.ServeMux) {
	for path, answer := range rpcCalls() {
		if path == runnerPath+"FetchSingleTask" && !s.opts.Forgejo {
			continue
		}
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) { s.serveRPC(w, r, path, answer) })
	}
}

func (s *Server) serveRPC(w http.ResponseWriter, r *http.Request, path string, answer func(*Server, *rpc) reply) {
	c := &rpc{r: r}
	decoder := json.NewDecoder(io.LimitReader(r.Body, maxBody))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&c.said)
	s.lock()
	defer s.core.Mu.Unlock()
	s.core.Requests[path]++
	media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch {
	case media != "application/json":
		s.violate("request", r, "the simulator reads JSON alone")
		send(w, reply{status: http.StatusUnsupportedMediaType})
	case err != nil:
		s.violate("request", r, "the message can't be read: "+err.Error())
		send(w, refuseRPC(codeInvalid, err.Error()))
	case s.core.Chance(s.core.Faults().ServerError):
		send(w, reply{status: http.StatusBadGateway})
	default:
		send(w, s.answerRPC(c, path, answer))
	}
	s.core.Kick()
}

func (s *Server) answerRPC(c *rpc, path string, answer func(*Server, *rpc) reply) reply {
	if path == pingPath+"Ping" || path == runnerPath+"Register" {
		return answer(s, c)
	}
	uuid, token := c.r.Header.Get("X-Runner-Uuid"), c.r.Header.Get("X-Runner-Token")
	for _, r := range s.runners {
		if r.uuid == uuid && subtle.ConstantTimeCompare([]byte(r.token), []byte(token)) == 1 {
			c.by = r
		}
	}
	if c.by == nil {
		return refuseRPC(codeUnauthenticated, "unregistered runner")
	}
	c.by.online = s.now()
	return answer(s, c)
}

func (s *Server) answerPing(c *rpc) reply {
	return ok(map[string]string{"data": "Hello, " + c.said.Data + "!"})
}

func runnerMessage(r *runner, token string) map[string]any {
	out := map[string]any{
		"id": strconv.FormatInt(r.id, 10), "uuid": r.uuid, "name": r.name, "version": r.version,
		"labels": r.labels, "ephemeral": r.ephemeral,
	}
	if token != "" {
		out["token"] = token
	}
	return map[string]any{"runner": out}
}

func (s *Server) answerRegister(c *rpc) reply {
	if s.core.Chance(s.core.Faults().RegistrationRefuse) {
		return refuseRPC(codeUnavailable, "an injected fault")
	}
	if c.said.Token == "" || c.said.Name == "" {
		return refuseRPC(codeUnknown, "missing runner token, name")
	}
	for place, token := range s.registration {
		if token == c.said.Token {
			r := s.newRunner(c.said.Name, place)
			r.version, r.labels, r.ephemeral = c.said.Version, c.said.Labels, c.said.Ephemeral
			if !r.ephemeral {
				s.violate("request", c.r, "the runner is not ephemeral")
			}
			return ok(runnerMessage(r, r.token))
		}
	}
	return refuseRPC(codeUnknown, "runner registration token not found")
}

func (s *Server) answerDeclare(c *rpc) reply {
	if s.core.Chance(s.core.Faults().RegistrationRefuse) {
		return refuseRPC(codeUnavailable, "an injected fault")
	}
	c.by.labels, c.by.version = c.said.Labels, c.said.Version
	return ok(runnerMessage(c.by, ""))
}

// answerFetch gives the runner the oldest job that it takes, or the one of the handle.
func (s *Server) answerFetch(c *rpc) reply {
	nothing := ok(map[string]any{"tasksVersion": "1"})
	switch {
	case c.by.disabled, c.by.ephemeral && c.by.worked:
		return nothing
	case c.by.running != nil:
		s.violate("request", c.r, "the runner asks for a job and has one")
		return nothing
	}
	var found *job
	for _, j := range s.jobs {
		asked := c.said.Handle == "" || c.said.Handle == j.handle
		if j.status == statusWaiting && c.by.takes(j) && asked && (found == nil || j.id < found.id) {
			found = j
		}
	}
	if found == nil || c.r.Context().Err() != nil { // nobody is there to take it
		return nothing
	}
	s.start(found, c.by)
	return ok(map[string]any{"tasksVersion": "1", "task": s.taskMessage(found)})
}

// taskMessage is a job as its runner is given it. The workflow has the one job alone.
func (s *Server) taskMessage(j *job) map[string]any {
	script := j.command
	if script == "" {
		script = "sleep " + strconv.FormatFloat(j.duration.Seconds(), 'f', -1, 64)
	}
	workflow, err := json.Marshal(map[string]any{ // JSON is YAML, too
		"name": "CI", "on": "push", "jobs": map[string]any{"build": map[string]any{
			"name": j.name, "runs-on": j.labels, "steps": []any{map[string]any{"run": script}},
		}},
	})
	if err != nil { // texts: it cannot be
		s.opts.Log.Error("write workflow", "error", err)
	}
	return map[string]any{
		"id": strconv.FormatInt(j.task, 10), "workflowPayload": workflow,
		"context": map[string]any{
			"repository": j.repo.path, "repository_owner": j.repo.owner(), "event_name": "push", "job": "build",
			"run_id": strconv.FormatInt(j.run, 10), "gitea_default_actions_url": "https://github.com",
		},
		"secrets": map[string]string{}, "needs": map[string]any{}, "vars": map[string]string{},
	}
}

// jobOf finds the job of a runner's task.
func (s *Server) jobOf(c *rpc, task number) *job {
	for _, j := range s.jobs {
		if j.task != 0 && j.task == int64(task) && j.ranID == c.by.id {
			return j
		}
	}
	return nil
}

func (s *Server) answerUpdateTask(c *rpc) reply {
	j := s.jobOf(c, c.said.State.ID)
	if j == nil {
		return refuseRPC(codeUnknown, "invalid runner for task")
	}
	results := map[string]string{
		"RESULT_SUCCESS": statusSuccess, "RESULT_FAILURE": statusFailure, "RESULT_CANCELLED": statusCancelled,
		"RESULT_SKIPPED": statusFailure,
	}
	if !j.over() {
		j.touched, c.by.active = s.now(), s.now()
		switch result, over := results[c.said.State.Result]; {
		case over:
			s.finish(j, result)
		case c.said.State.Result != "RESULT_UNSPECIFIED" && c.said.State.Result != "":
			s.violate("request", c.r, "result "+c.said.State.Result+" is not known")
		}
	}
	state := map[string]any{"id": strconv.FormatInt(j.task, 10), "result": "RESULT_UNSPECIFIED"}
	for word, status := range results {
		if status == j.status && word != "RESULT_SKIPPED" {
			state["result"] = word
		}
	}
	return ok(map[string]any{"state": state, "sentOutputs": []string{}})
}

func (s *Server) answerUpdateLog(c *rpc) reply {
	j := s.jobOf(c, c.said.TaskID)
	if j == nil {
		return refuseRPC(codeUnknown, "invalid runner for task")
	}
	j.touched, c.by.active = s.now(), s.now()
	for i, row := range c.said.Rows {
		if int(c.said.Index)+i >= len(j.log) {
			j.log = append(j.log, row.Content)
		}
	}
	return ok(map[string]any{"ackIndex": strconv.Itoa(len(j.log))})
}
