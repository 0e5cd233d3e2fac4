// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"cmp"
	"fmt"
	"math"
	"net/url"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	template "github.com/DataDog/datadog-agent/pkg/template/html"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/jobs"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/live"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

// templateFuncs returns the functions that the templates call.
func (h *handler) templateFuncs() template.FuncMap {
	return template.FuncMap{
		"ago": func(t time.Time) string {
			if t.IsZero() {
				return ""
			}

			return jobs.FormatDuration(max(h.Clock.Now().Sub(t), 0).Seconds())
		},
		"human":    jobs.FormatDuration,
		"long":     func(d time.Duration) string { return jobs.FormatDuration(d.Seconds()) },
		"between":  jobs.FormatInterval,
		"clock":    func(t time.Time) string { return toLocal(t).Format("15:04:05") },
		"date":     func(t time.Time) string { return toLocal(t).Format("2006-01-02 15:04:05 MST") },
		"rfc3339":  func(t time.Time) string { return t.Format(time.RFC3339) },
		"safe":     cli.Sanitize,
		"path":     joinPath,
		"query":    url.QueryEscape,
		"gib":      func(bytes int64) string { return fmt.Sprintf("%.0f GiB", float64(bytes)/(1<<30)) },
		"round":    func(x float64) int { return int(math.Round(x)) },
		"percent":  live.Usage.Percent,
		"idle":     live.Pool.Idle,
		"starting": live.Pool.Starting,
		"total":    live.Machines.Total,
		"tone": func(state any, conclusion ...string) live.Tone {
			return live.StateTone(fmt.Sprint(state), strings.Join(conclusion, ""))
		},
		"readyState": live.Ready.State,
		"readyTone":  live.Ready.Tone,
		"poolState":  live.Pool.State,
		"poolTone":   live.Pool.Tone,
		"words":      splitWords,
		"choice":     formatChoice,
		"stateURL":   func(path string, state any, pool ...string) string { return stateURL(path, fmt.Sprint(state), pool...) },
		"join":       strings.Join,
		"lines":      func(text string) int { return strings.Count(strings.TrimRight(text, "\n"), "\n") + 1 },
		"kindURL":    kindURL,
		"wait":       func(state v1alpha1.JobState) bool { return state == v1alpha1.JobQueued || state == v1alpha1.JobWaiting },
		"link":       sanitizeLink,
		"dict": func(pairs ...any) map[string]any {
			out := map[string]any{}
			for i := 0; i+1 < len(pairs); i += 2 {
				out[fmt.Sprint(pairs[i])] = pairs[i+1]
			}

			return out
		},
	}
}

// joinPath returns the path of a URL with the given segments, each escaped.
func joinPath(parts ...string) string {
	var out strings.Builder
	for _, part := range parts {
		out.WriteString("/" + url.PathEscape(part))
	}

	return out.String()
}

// sanitizeLink returns an http or https URL, and "" for any other text.
func sanitizeLink(text string) string {
	link, err := url.Parse(text)
	if err != nil || link.Scheme != "https" && link.Scheme != "http" {
		return ""
	}

	return link.String()
}

// kindURL returns the path of the page of an object, and "" if the kind has no page.
func kindURL(kind, namespace, name string) string {
	switch kind {
	case live.KindPool:
		return joinPath("pools", namespace, name)
	case live.KindCluster:
		return joinPath("clusters", name)
	case live.KindMachine:
		return joinPath("machines", namespace, name)
	case live.KindFleet:
		return "/hosts"
	default:
		return ""
	}
}

// splitWords returns a CamelCase reason as words in lower case: AtMaximum becomes "at maximum".
func splitWords(reason string) string {
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

// formatChoice returns the name of a choice: All, or the names of states with a capital letter.
func formatChoice(state string) string {
	var names []string
	for name := range strings.SplitSeq(cmp.Or(state, "All"), ",") {
		names = append(names, splitWords(name))
	}

	text := strings.Join(names, " or ")
	first, size := utf8.DecodeRuneInString(text)

	return string(unicode.ToUpper(first)) + text[size:]
}

// phase is the part of a lifecycle between two events of the timeline.
type phase struct {
	Name, Tone string
	Seconds    float64
	// X and Width are the position and the width in a bar of 1000 units.
	X, Width float64
}

// newPhases divides a timeline into phases, merges consecutive phases of the same name, and places them side by
// side in a bar of totalWidth units. A phase lasts until the next event, and the last phase until now. The
// event Destroyed starts no phase.
func newPhases(timeline []jobs.TimelineEntry, now time.Time) []phase {
	const totalWidth, minWidth = 1000.0, 6.0

	type phaseStyle struct{ name, tone string }

	styles := map[v1alpha1.JobMoment]phaseStyle{
		v1alpha1.MomentQueued: {"queued", "wait"}, v1alpha1.MomentReceived: {"queued", "wait"},
		v1alpha1.MomentWaiting: {"queued", "wait"},
		// This phase is not called cloning, because the job may wait for its machine before the clone starts.
		v1alpha1.MomentDecided: {"until cloned", "clone"},
		v1alpha1.MomentCloned:  {"booting", "boot"}, v1alpha1.MomentBooted: {"booting", "boot"},
		v1alpha1.MomentRegistered: {"idle", "idle"}, v1alpha1.MomentStarted: {"job", "run"},
		v1alpha1.MomentFinished: {"clean-up", "end"}, momentPlaced: {"cloning", "clone"}, momentStopped: {"clean-up", "end"},
	}

	var (
		out   []phase
		total float64
	)

	for i, entry := range timeline {
		end := now
		if i+1 < len(timeline) {
			end = timeline[i+1].Time
		}

		style, ok := styles[entry.Moment]
		if !ok {
			continue
		}

		seconds := max(end.Sub(entry.Time), 0).Seconds()
		total += seconds

		if last := len(out) - 1; last >= 0 && out[last].Name == style.name {
			out[last].Seconds += seconds

			continue
		}

		out = append(out, phase{Name: style.name, Tone: style.tone, Seconds: seconds})
	}

	x := 0.0
	scale := (totalWidth - minWidth*float64(len(out))) / cmp.Or(total, 1)

	for i := range out {
		out[i].X, out[i].Width = x, minWidth+out[i].Seconds*scale
		x += out[i].Width
	}

	return out
}

// Events of a machine that a job's timeline does not have.
const (
	momentCreated v1alpha1.JobMoment = "Created"
	momentPlaced  v1alpha1.JobMoment = "Placed"
	momentStopped v1alpha1.JobMoment = "Stopped"
)

// newTimeline returns the timeline of a machine.
func newTimeline(claim *v1alpha1.MachineClaim) []jobs.TimelineEntry {
	out := []jobs.TimelineEntry{{Moment: momentCreated, Time: claim.CreationTimestamp.Time}}
	times := cmp.Or(claim.Status.Times, &v1alpha1.MachineTimes{})

	for _, event := range []struct {
		kind    v1alpha1.JobMoment
		time    *metav1.MicroTime
		message string
	}{
		{momentPlaced, times.Placed, "the node and the VM ID were chosen"},
		{v1alpha1.MomentCloned, times.Cloned, "the VM was cloned and configured"},
		{v1alpha1.MomentBooted, times.Started, "the VM was powered on"},
		{v1alpha1.MomentRegistered, times.Ready, "the runner was online"},
		{v1alpha1.MomentStarted, times.JobStarted, "the runner took a job"},
		{momentStopped, times.Stopped, "the VM was powered off: " + claim.Status.EndReason},
	} {
		if event.time == nil {
			continue
		}

		previous := out[len(out)-1].Time
		out = append(out, jobs.TimelineEntry{
			Moment: event.kind, Time: event.time.Time, Message: event.message,
			AfterSeconds: max(event.time.Sub(previous), 0).Seconds(),
		})
	}

	return out
}

// toLocal returns the time in the time zone of this machine.
func toLocal(t time.Time) time.Time { return t.Local() } //nolint:gosmopolitan // the users are at this machine
