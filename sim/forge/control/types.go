// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// JobSpec describes Count equal jobs of one repository that are to be queued. The jobs of one
// request share workflow runs of at most 256 jobs, which is GitHub's limit for a matrix.
type JobSpec struct {
	Repo        string        `json:"repo"` // OWNER/NAME
	Labels      []string      `json:"labels"`
	Count       int           `json:"count,omitempty"`       // default 1
	Duration    time.Duration `json:"duration,omitempty"`    // nanoseconds that the runner sleeps
	Command     string        `json:"command,omitempty"`     // the runner runs the command instead of sleeping
	Name        string        `json:"name,omitempty"`        // default "build"
	Workflow    string        `json:"workflow,omitempty"`    // default "CI"
	Environment string        `json:"environment,omitempty"` // protected environment: the job waits until it is approved
}

// Job is the state of one job. A time is zero until the job reaches the state.
type Job struct {
	ID          int64     `json:"id"`
	Key         string    `json:"key,omitempty"` // the platform's own id, if the id is not a number
	RunID       int64     `json:"runId"`
	Repo        string    `json:"repo"`
	Name        string    `json:"name"`
	Labels      []string  `json:"labels"`
	Status      string    `json:"status"`     // queued, waiting, in_progress, completed
	Conclusion  string    `json:"conclusion"` // success, failure, cancelled; empty until completed
	Environment string    `json:"environment,omitempty"`
	RunnerID    int64     `json:"runnerId,omitempty"`
	RunnerName  string    `json:"runnerName,omitempty"`
	Requeues    int       `json:"requeues,omitempty"` // assignments that no runner picked up
	QueuedAt    time.Time `json:"queuedAt,omitzero"`
	StartedAt   time.Time `json:"startedAt,omitzero"`
	CompletedAt time.Time `json:"completedAt,omitzero"`
}

// Runner is one registered runner.
type Runner struct {
	ID        int64    `json:"id"`
	Name      string   `json:"name"`
	Scope     string   `json:"scope"` // OWNER/NAME, OWNER, or enterprises/NAME
	Group     string   `json:"group"`
	Labels    []string `json:"labels"`
	Online    bool     `json:"online"`
	Busy      bool     `json:"busy"`
	Ephemeral bool     `json:"ephemeral"`
	JIT       bool     `json:"jit"`
	JobID     int64    `json:"jobId,omitempty"`
}

// State is a snapshot of a simulator.
type State struct {
	Now      time.Time      `json:"now"`
	Jobs     []Job          `json:"jobs"`
	Runners  []Runner       `json:"runners"`
	Webhooks WebhookCounts  `json:"webhooks"`
	Requests map[string]int `json:"requests"` // API calls by operation id
	// MachineCalls are the keys of Requests that runners, agents and jobs call.
	MachineCalls []string `json:"machineCalls,omitempty"`
	Registered   int      `json:"registered"`
}

// ClientRequests returns the entries of Requests that a program which manages runners has called.
// These are all entries except MachineCalls.
func (s State) ClientRequests() map[string]int {
	out := maps.Clone(s.Requests)
	maps.DeleteFunc(out, func(name string, _ int) bool { return slices.Contains(s.MachineCalls, name) })
	return out
}

// WebhookCounts counts webhook deliveries.
type WebhookCounts struct {
	Delivered  int `json:"delivered"` // the response was 2xx
	Failed     int `json:"failed"`    // the response was not 2xx, or the receiver timed out or was unreachable
	Lost       int `json:"lost"`      // dropped by a fault
	Duplicated int `json:"duplicated"`
	Pending    int `json:"pending"`
}

// Faults are the faults that a simulator injects: probabilities from 0 to 1, which are drawn from
// the seeded source, and delays. The zero value injects no faults.
type Faults struct {
	WebhookLost         float64       `json:"webhookLost,omitempty"`
	WebhookDuplicated   float64       `json:"webhookDuplicated,omitempty"`
	WebhookReordered    float64       `json:"webhookReordered,omitempty"`
	ServerError         float64       `json:"serverError,omitempty"`        // 502 before the call has an effect
	SecondaryRateLimit  float64       `json:"secondaryRateLimit,omitempty"` // 403 with Retry-After
	RateLimit           float64       `json:"rateLimit,omitempty"`          // 403 as if the hour's calls were used up
	RetryAfter          time.Duration `json:"retryAfter,omitempty"`         // default 60 s
	JITDelay            time.Duration `json:"jitDelay,omitempty"`
	RegistrationRefused float64       `json:"registrationRefused,omitempty"` // config.sh and sessions are rejected
	DeleteBusy          float64       `json:"deleteBusy,omitempty"`          // 422 although the runner is idle
	Unauthorized        float64       `json:"unauthorized,omitempty"`        // 401 as if the token were revoked
	// RegistrationsLimited is 429 as if too many runners of the scope had been registered.
	RegistrationsLimited float64 `json:"registrationsLimited,omitempty"`
	SessionLost          float64 `json:"sessionLost,omitempty"`     // a scale set's session ends, and its messages are lost
	MessageRepeated      float64 `json:"messageRepeated,omitempty"` // an acknowledged message of a scale set is sent again
}

// Check returns an error if a probability is outside [0,1] or a delay is negative.
func (f Faults) Check() error {
	for name, p := range map[string]float64{
		"webhookLost": f.WebhookLost, "webhookDuplicated": f.WebhookDuplicated,
		"webhookReordered": f.WebhookReordered, "serverError": f.ServerError,
		"secondaryRateLimit": f.SecondaryRateLimit, "rateLimit": f.RateLimit,
		"sessionLost": f.SessionLost, "messageRepeated": f.MessageRepeated,
		"registrationRefused": f.RegistrationRefused, "deleteBusy": f.DeleteBusy,
		"unauthorized": f.Unauthorized, "registrationsLimited": f.RegistrationsLimited,
	} {
		if !(p >= 0 && p <= 1) { // also rejects NaN
			return fmt.Errorf("check faults: %s is %v, want a probability from 0 to 1", name, p)
		}
	}
	if f.RetryAfter < 0 || f.JITDelay < 0 {
		return errors.New("check faults: a delay is negative")
	}
	return nil
}

// WebhookTarget is the target of webhooks. An empty URL disables webhooks.
type WebhookTarget struct {
	URL    string `json:"url"`
	Secret string `json:"secret,omitempty"`
}

// Violation is a violation of the platform's contract by a caller or by the simulator.
type Violation struct {
	Time    time.Time `json:"time"`
	Kind    string    `json:"kind"` // request, response, unknown-path, webhook
	Method  string    `json:"method,omitempty"`
	Path    string    `json:"path,omitempty"`
	Message string    `json:"message"`
}
