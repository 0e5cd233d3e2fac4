// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"cmp"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	template "github.com/DataDog/datadog-agent/pkg/template/html"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/jobs"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/live"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

// funcs are what the templates call.
func (h *handler) funcs() template.FuncMap {
	return template.FuncMap{
		"ago": func(at time.Time) string {
			if at.IsZero() {
				return ""
			}

			return jobs.Human(max(h.Clock.Now().Sub(at), 0).Seconds())
		},
		"human":    jobs.Human,
		"long":     func(d time.Duration) string { return jobs.Human(d.Seconds()) },
		"between":  jobs.Between,
		"clock":    func(at time.Time) string { return local(at).Format("15:04:05") },
		"date":     func(at time.Time) string { return local(at).Format("2006-01-02 15:04:05 MST") },
		"rfc3339":  func(at time.Time) string { return at.Format(time.RFC3339) },
		"safe":     cli.Safe,
		"path":     pathOf,
		"query":    url.QueryEscape,
		"gib":      func(bytes int64) string { return fmt.Sprintf("%.0f GiB", float64(bytes)/(1<<30)) },
		"round":    func(x float64) int { return int(math.Round(x)) },
		"percent":  live.Usage.Percent,
		"idle":     live.Pool.Idle,
		"starting": live.Pool.Starting,
		"total":    live.Machines.Total,
		"tone":     tone,
		"ready":    readyTone,
		"words":    words,
		"join":     strings.Join,
		"lines":    func(text string) int { return strings.Count(strings.TrimRight(text, "\n"), "\n") + 1 },
		"kindURL":  kindURL,
		"wait":     func(state v1alpha1.JobState) bool { return state == v1alpha1.JobQueued || state == v1alpha1.JobWaiting },
		"link":     safeLink,
		"dict": func(pairs ...any) map[string]any {
			out := map[string]any{}
			for i := 0; i+1 < len(pairs); i += 2 {
				out[fmt.Sprint(pairs[i])] = pairs[i+1]
			}

			return out
		},
	}
}

// pathOf joins what a URL's path is made of.
func pathOf(parts ...string) string {
	var out strings.Builder
	for _, part := range parts {
		out.WriteString("/" + url.PathEscape(part))
	}

	return out.String()
}

// safeLink is a link to a CI platform, empty where it is none.
func safeLink(text string) string {
	link, err := url.Parse(text)
	if err != nil || link.Scheme != "https" && link.Scheme != "http" {
		return ""
	}

	return link.String()
}

// kindURL is the page of an object; empty where it has none.
func kindURL(kind, namespace, name string) string {
	switch kind {
	case live.KindPool:
		return pathOf("pools", namespace, name)
	case live.KindCluster:
		return pathOf("clusters", name)
	case live.KindMachine:
		return pathOf("machines", namespace, name)
	case live.KindFleet:
		return "/hosts"
	default:
		return ""
	}
}

// tone is the colour of a job's state or a machine's phase.
func tone(state any, conclusion ...string) string {
	switch text := fmt.Sprint(state); {
	case text == string(v1alpha1.JobCompleted):
		switch last := strings.Join(conclusion, ""); {
		case live.Failed(last):
			return "bad"
		case slices.Contains([]string{"success", "passed"}, last):
			return "good"
		default:
			return "quiet"
		}
	case text == "Failed":
		return "bad"
	case text == string(v1alpha1.JobQueued), text == string(v1alpha1.JobWaiting), text == "Pending":
		return "wait"
	case text == string(v1alpha1.JobRunning), text == "Ready":
		return "good"
	default:
		return "busy"
	}
}

// readyTone is the colour of a condition Ready.
func readyTone(ready live.Ready) string {
	switch ready.Status {
	case metav1.ConditionTrue:
		return "good"
	case metav1.ConditionFalse:
		return "bad"
	default:
		return "wait"
	}
}

// words makes words of a CamelCase reason: AtMaximum is "at maximum".
func words(reason string) string {
	var out strings.Builder

	letters := []rune(reason)
	for i, c := range letters {
		if i > 0 && c >= 'A' && c <= 'Z' && (letters[i-1] < 'A' || letters[i-1] > 'Z') {
			out.WriteByte(' ')
		}

		out.WriteRune(c)
	}

	return strings.ToLower(out.String())
}

// phase is a part of a life, between two moments.
type phase struct {
	Name, Tone string
	Seconds    float64
	// X and Width are its place in a bar of 1000 units.
	X, Width float64
}

// phasesOf divides a life into phases, each named by what was done in it. What is not over yet
// lasts until now.
func phasesOf(moments []jobs.Moment, now time.Time) []phase {
	const whole, least = 1000.0, 6.0

	type named struct{ name, tone string }

	names := map[v1alpha1.JobMoment]named{
		v1alpha1.MomentQueued: {"queued", "wait"}, v1alpha1.MomentReceived: {"queued", "wait"},
		v1alpha1.MomentWaiting: {"queued", "wait"},
		// The job may have waited for its turn before its machine was begun.
		v1alpha1.MomentDecided: {"until cloned", "clone"},
		v1alpha1.MomentCloned:  {"booting", "boot"}, v1alpha1.MomentBooted: {"booting", "boot"},
		v1alpha1.MomentRegistered: {"idle", "idle"}, v1alpha1.MomentStarted: {"job", "run"},
		v1alpha1.MomentFinished: {"clean-up", "end"}, momentPlaced: {"cloning", "clone"}, momentStopped: {"clean-up", "end"},
	}

	var (
		out   []phase
		total float64
	)

	for i, moment := range moments {
		end := now
		if i+1 < len(moments) {
			end = moments[i+1].Time
		}

		name, ok := names[moment.Moment]
		if !ok || moment.Moment == v1alpha1.MomentDestroyed {
			continue
		}

		seconds := max(end.Sub(moment.Time), 0).Seconds()
		total += seconds

		if last := len(out) - 1; last >= 0 && out[last].Name == name.name {
			out[last].Seconds += seconds

			continue
		}

		out = append(out, phase{Name: name.name, Tone: name.tone, Seconds: seconds})
	}

	x := 0.0
	scale := (whole - least*float64(len(out))) / cmp.Or(total, 1)

	for i := range out {
		out[i].X, out[i].Width = x, least+out[i].Seconds*scale
		x += out[i].Width
	}

	return out
}

// Moments of a machine that a job's timeline does not have.
const (
	momentCreated v1alpha1.JobMoment = "Created"
	momentPlaced  v1alpha1.JobMoment = "Placed"
	momentStopped v1alpha1.JobMoment = "Stopped"
)

// momentsOf gives the moments of a machine's life, in their order.
func momentsOf(claim *v1alpha1.MachineClaim) []jobs.Moment {
	out := []jobs.Moment{{Moment: momentCreated, Time: claim.CreationTimestamp.Time}}
	times := cmp.Or(claim.Status.Times, &v1alpha1.MachineTimes{})

	for _, moment := range []struct {
		moment v1alpha1.JobMoment
		at     *metav1.MicroTime
		words  string
	}{
		{momentPlaced, times.Placed, "node and id were chosen"},
		{v1alpha1.MomentCloned, times.Cloned, "the VM was made and configured"},
		{v1alpha1.MomentBooted, times.Started, "the VM was powered on"},
		{v1alpha1.MomentRegistered, times.Ready, "the runner was online"},
		{v1alpha1.MomentStarted, times.JobStarted, "the runner took a job"},
		{momentStopped, times.Stopped, "the VM was off: " + claim.Status.EndReason},
	} {
		if moment.at == nil {
			continue
		}

		before := out[len(out)-1].Time
		out = append(out, jobs.Moment{
			Moment: moment.moment, Time: moment.at.Time, Message: moment.words,
			AfterSeconds: max(moment.at.Sub(before), 0).Seconds(),
		})
	}

	return out
}

// local is the time that people read.
func local(at time.Time) time.Time { return at.Local() } //nolint:gosmopolitan // it is for the people at this machine
