// The jobs of k8s.io/mount-utils, which most CSI drivers in Go use, timed for the benchmarks.
//
// Each line of standard input is a JSON array: a job's name, how often to do it, and its arguments. Each line
// of standard output is the answer: {"nanoseconds": n}, or {"error": "..."}. Everything that prepares a job
// is done by the caller.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"k8s.io/klog/v2"
	mount "k8s.io/mount-utils"
	"k8s.io/utils/exec"
)

// A request: the job, the number of times, the arguments.
type request struct {
	job       string
	times     int
	arguments []string
}

type answer struct {
	Nanoseconds int64  `json:"nanoseconds"`
	Error       string `json:"error,omitempty"`
}

func (r *request) UnmarshalJSON(line []byte) error {
	var parts []json.RawMessage
	if err := json.Unmarshal(line, &parts); err != nil {
		return err
	}
	if len(parts) < 2 {
		return fmt.Errorf("a request is [job, times, arguments...]: %s", line)
	}
	if err := json.Unmarshal(parts[0], &r.job); err != nil {
		return err
	}
	if err := json.Unmarshal(parts[1], &r.times); err != nil {
		return err
	}
	for _, part := range parts[2:] {
		var argument string
		if err := json.Unmarshal(part, &argument); err != nil {
			return err
		}
		r.arguments = append(r.arguments, argument)
	}
	return nil
}

// A job, and the number of its arguments.
type job struct {
	arguments int
	do        func(a []string) error
}

func jobs() map[string]job {
	// As in a driver's container, which has no systemd.
	mounter := mount.NewWithoutSystemd("")
	disks := mount.NewSafeFormatAndMount(mounter, exec.New())
	grower := mount.NewResizeFs(exec.New())
	return map[string]job{
		"bind read-only": {2, func(a []string) error {
			return mounter.Mount(a[0], a[1], "", []string{"bind", "ro"})
		}},
		"unmount": {1, func(a []string) error { return mounter.Unmount(a[0]) }},
		"is mount point": {1, func(a []string) error {
			is, err := mounter.IsMountPoint(a[0])
			if err == nil && !is {
				return fmt.Errorf("%s is not a mount point", a[0])
			}
			return err
		}},
		"list": {0, func([]string) error {
			_, err := mounter.List()
			return err
		}},
		"disk format": {1, func(a []string) error {
			_, err := disks.GetDiskFormat(a[0])
			return err
		}},
		"format and mount": {3, func(a []string) error {
			return disks.FormatAndMount(a[0], a[1], a[2], nil)
		}},
		"resize": {2, func(a []string) error {
			_, err := grower.Resize(a[0], a[1])
			return err
		}},
	}
}

func run(all map[string]job, line []byte) (int64, error) {
	var r request
	if err := json.Unmarshal(line, &r); err != nil {
		return 0, err
	}
	one, known := all[r.job]
	if !known || len(r.arguments) != one.arguments {
		return 0, fmt.Errorf("no job %q with %d arguments", r.job, len(r.arguments))
	}
	begun := time.Now()
	for range r.times {
		if err := one.do(r.arguments); err != nil {
			return 0, fmt.Errorf("%s %q: %w", r.job, r.arguments, err)
		}
	}
	return time.Since(begun).Nanoseconds(), nil
}

func main() {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	all := jobs()
	lines := bufio.NewScanner(os.Stdin)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		nanoseconds, err := run(all, lines.Bytes())
		said := answer{Nanoseconds: nanoseconds}
		if err != nil {
			said.Error = err.Error()
		}
		if answers.Encode(said) != nil {
			os.Exit(1)
		}
	}
}
