// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// slowLog is the body of a report with a log that ends when it is told to.
type slowLog struct {
	io.Reader

	reading *atomic.Int32
	end     <-chan struct{}
	once    sync.Once
}

func (s *slowLog) Read(p []byte) (int, error) {
	s.once.Do(func() {
		s.reading.Add(1)
		<-s.end
	})

	return s.Reader.Read(p)
}

// request is a report of the numbered machine.
func (o *reportOffice) request(number int, body io.Reader, length int64) *http.Request {
	o.t.Helper()

	claim := o.claim()
	claim.Name = fmt.Sprintf("linux-%d", number)
	claim.UID = types.UID(claim.Name)

	request := reportOf(o.t, claim, body)
	request.ContentLength = length

	return request
}

// What the logs of a fleet take at once is bounded, however many machines send theirs; what is
// small waits for none of them.
func TestLogsAtOnceAreBounded(t *testing.T) {
	t.Parallel()

	const (
		fleet   = 60
		largest = 8<<10 + 6*guest.MaxLog + 2
		most    = 8 << 20 / largest
	)

	o := newReportOffice(t, v1alpha1.BootstrapInfo{})
	o.open()

	var (
		group   sync.WaitGroup
		reading atomic.Int32
	)

	end := make(chan struct{})

	for number := range fleet {
		group.Go(func() {
			body := &slowLog{Reader: strings.NewReader(`{"phase":"Finished","log":"x"}`), reading: &reading, end: end}
			answer := httptest.NewRecorder()
			reports(o.handler).ServeHTTP(answer, o.request(number, body, largest))

			if answer.Code != http.StatusGone { // it has no claim here
				t.Errorf("log %d is answered %d: %s", number, answer.Code, answer.Body)
			}
		})
	}

	for deadline := time.Now().Add(time.Minute); reading.Load() < most; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d logs are read at once", reading.Load())
		}
	}

	if code := o.send(guest.PhaseListening); code != http.StatusNoContent {
		t.Errorf("a report without a log is answered %d", code)
	}

	if now := reading.Load(); now != most {
		t.Errorf("%d logs are read at once, want %d", now, most)
	}

	close(end)
	group.Wait()
}

// Machines that send their logs slowly keep no other from sending its own.
func TestSlowLogsAreCutShort(t *testing.T) {
	t.Parallel()

	o := newReportOffice(t, v1alpha1.BootstrapInfo{})
	o.open()

	server := httptest.NewServer(reports(o.handler))
	defer server.Close()

	post := func(number int, body io.Reader, length int64) (int, error) {
		request := o.request(number, body, length)
		request.RequestURI = ""
		request.URL.Scheme, request.URL.Host = "http", server.Listener.Addr().String()

		answer, err := server.Client().Do(request)
		if err != nil {
			return 0, err
		}

		return answer.StatusCode, answer.Body.Close()
	}

	const slow = 20

	var group sync.WaitGroup

	for number := range slow {
		group.Go(func() {
			never, _ := io.Pipe()
			defer never.Close()

			if code, err := post(number, never, 8<<10+6*guest.MaxLog); err == nil && code < http.StatusBadRequest {
				t.Errorf("slow log %d is answered %d", number, code)
			}
		})
	}

	time.Sleep(100 * time.Millisecond) // most of them have come

	log := fmt.Sprintf(`{"phase":"Finished","log":%q}`, strings.Repeat("x", guest.MaxLog-1))
	if code, err := post(slow, strings.NewReader(log), int64(len(log))); err != nil || code != http.StatusGone {
		t.Errorf("a log after them is answered %d, %v", code, err)
	}

	group.Wait()
}
