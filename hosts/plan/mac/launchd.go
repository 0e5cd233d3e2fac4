// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package mac

import (
	"encoding/xml"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/hosts/plan/parts"
)

// job is a job of launchd (launchd.plist(5)).
type job struct {
	name      string
	arguments []string
	// keep starts it anew when it ends; interval, in seconds, again and again.
	keep     bool
	interval int
	// login is the user in whose console session the job runs; the system's where it is empty.
	login string
}

func (j job) path() string {
	if j.login != "" {
		return "/Library/LaunchAgents/" + j.name + ".plist"
	}

	return "/Library/LaunchDaemons/" + j.name + ".plist"
}

// service is the job as launchctl names it, in bash.
func (j job) service() string {
	if j.login != "" {
		return `"gui/$(id -u ` + plan.Quote(j.login) + `)/` + j.name + `"`
	}

	return "system/" + j.name
}

func (j job) stamp() string { return stateDir + "jobs/" + j.name + ".plist" }

func (j job) vars() []plan.Var {
	return []plan.Var{
		{Name: "JOB", Value: j.name},
		{Name: "PLIST", Value: j.path()},
		{Name: "STAMP", Value: j.stamp()},
	}
}

// addJob adds the two parts of a job: LABEL-plist, and LABEL-job, which starts it anew.
func addJob(d *plan.Draft, label string, j job, stable int, restarts ...string) {
	unit := j.unit(label + "-plist")
	unit.Reapplies = []string{label + "-job"}
	d.Add(unit, nil)

	start := j.start(label+"-job", stable)
	start.Reapplies = restarts
	d.Add(start, nil)
}

func (j job) unit(label string) plan.Part {
	return parts.File(label, plan.Unit, parts.Place{Path: j.path(), Mode: 0o644, Owner: rootWheel}, plan.Text(j.plist()))
}

// start has launchd run the job anew. With a time in seconds it demands a new process that
// lives that long.
func (j job) start(label string, stable int) plan.Part {
	probe := "launchctl print " + j.service()
	if stable > 0 {
		probe += " | grep -E '^[[:space:]]*pid = [0-9]+'"
	}

	return parts.Script(label, body("job"), probe,
		append(j.vars(), plan.Var{Name: "LOGIN", Value: j.login}, plan.Var{Name: "STABLE", Value: strconv.Itoa(stable)})...)
}

// jobOff takes a job away.
func jobOff(label string, j job) plan.Part {
	return parts.Script(label, body("job-off"),
		"test ! -e "+j.path()+"\ntest -z \"$(launchctl list | grep -F "+j.name+")\"", j.vars()...)
}

// plist writes the job. AbandonProcessGroup lets machines that the job has started live
// on when it is started anew.
func (j job) plist() string {
	var b strings.Builder

	b.WriteString(xml.Header +
		`<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">` +
		"\n<plist version=\"1.0\">\n<dict>\n")

	entry := func(key, value string) { fmt.Fprintf(&b, "\t<key>%s</key>\n\t%s\n", key, value) }
	text := func(value string) string { return "<string>" + escape(value) + "</string>" }

	entry("Label", text(j.name))

	var arguments []string
	for _, argument := range j.arguments {
		arguments = append(arguments, "\t\t"+text(argument)+"\n")
	}

	entry("ProgramArguments", "<array>\n"+strings.Join(arguments, "")+"\t</array>")
	entry("RunAtLoad", "<true/>")
	entry("AbandonProcessGroup", "<true/>")

	if j.keep {
		entry("KeepAlive", "<true/>")
	}

	if j.interval > 0 {
		entry("StartInterval", fmt.Sprintf("<integer>%d</integer>", j.interval))
	}

	home, logs := "/var/root", "/var/log/"

	if j.login != "" {
		entry("LimitLoadToSessionType", text("Aqua"))

		home = "/Users/" + j.login
		logs = home + "/Library/Logs/"
	}

	entry("EnvironmentVariables", "<dict>\n\t\t<key>HOME</key>\n\t\t"+text(home)+"\n"+
		"\t\t<key>PATH</key>\n\t\t<string>/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin</string>\n\t</dict>")
	entry("StandardOutPath", text(logs+j.name+".log"))
	entry("StandardErrorPath", text(logs+j.name+".log"))
	b.WriteString("</dict>\n</plist>\n")

	return b.String()
}

func escape(text string) string {
	var b strings.Builder
	// A strings.Builder takes all.
	_ = xml.EscapeText(&b, []byte(text))

	return b.String()
}

// labels writes the labels of a node in one order.
func labels(of map[string]string) string {
	var pairs []string
	for _, key := range slices.Sorted(maps.Keys(of)) {
		pairs = append(pairs, key+"="+of[key])
	}

	return strings.Join(pairs, ",")
}
