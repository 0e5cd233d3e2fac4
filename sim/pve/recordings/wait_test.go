// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package recordings_test

import (
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/pve"
)

// replayStep is the time between two requests.
const replayStep = 20 * time.Millisecond

// reportedPath matches the lists that come from the reports of the nodes.
var reportedPath = regexp.MustCompile(`^/(cluster/resources|pools)`)

// replayStale sends a request again while the reports of the nodes are older. A node reports every ten seconds, and the
// recording does not tell the age of its last report.
func (r *replayer) replayStale(e exchange, differences []string) []string {
	for age := replayStep; age <= 100*replayStep; age += replayStep {
		remove := r.server.AddFault(pve.Fault{Kind: pve.FaultStale, Delay: age})
		isAlike := len(r.replayOnce(e)) == 0

		remove()

		if isAlike {
			return nil
		}
	}

	return differences
}

var recordedWait = regexp.MustCompile(`/after (\d+) s: /nodes as op$`)

// waitAsRecorded lets the time pass that an ID names: "hang/after 45 s: ...". Before a VM is stopped, it waits until
// the task that tried to start the VM has ended.
func (r *replayer) waitAsRecorded(e exchange) {
	if e.ID == "tasks/stop vm" {
		const started = "/nodes/pve1/tasks/<UPID:pve1:qmstart:140701:hyperfleet@pve!operator>/status"

		for range 1000 {
			_, _, body, err := r.send(exchange{As: "root", Method: http.MethodGet, Path: started})
			if err != nil || strings.Contains(string(body), "stopped") {
				break
			}

			time.Sleep(100 * time.Millisecond)
		}
	}

	if strings.HasSuffix(e.ID, "/no quorum: /nodes as op") { // the recording waited until the quorum was lost
		time.Sleep(time.Minute)
	}

	if found := recordedWait.FindStringSubmatch(e.ID); found != nil {
		seconds, _ := strconv.Atoi(found[1])
		time.Sleep(time.Duration(seconds) * time.Second)
	}
}
