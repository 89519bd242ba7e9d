"""Lists the tests of which `make test` runs only a few cases, or none: the other cases show the same on more input and
take long.

`make test-all` runs every case. The numbers do not count cases that a test file marks `exhaustive` itself.
`docs/guarantees.md` names the tests of which `make test` runs none.
"""

from collections.abc import Iterable, Mapping

import pytest

IN_MAKE_TEST: Mapping[str, Mapping[str, int]] = {
    "browser/test_accessibility.py": {
        "test_a_page_with_a_flaw_is_not_taken_for_a_good_one": 2,
    },
    "browser/test_agents.py": {
        "test_a_project_without_agents_says_how_to_make_one": 0,
        "test_an_agent_that_does_not_exist_is_said": 0,
        "test_short_documents_among_the_settings_had_no_name": 0,
        "test_the_list_of_agents_was_wider_than_a_narrow_screen": 0,
        "test_the_prompt_is_shown_as_the_model_is_told_it": 0,
        "test_the_settings_of_an_agent_are_shown": 0,
        "test_the_source_of_a_tool_is_text_whatever_it_says": 0,
    },
    "browser/test_approval_pages.py": {
        "test_a_name_that_no_agent_or_several_have_is_said_and_can_be_corrected": 0,
        "test_a_page_that_was_decided_elsewhere_leads_back_to_what_waits": 0,
        "test_an_agent_without_decisions_leads_to_those_of_all": 0,
    },
    "browser/test_approvals.py": {
        "test_a_call_is_approved_without_a_mouse": 0,
        "test_a_call_of_the_clients_is_answered_with_a_result": 0,
        "test_a_denied_call_never_runs_and_the_model_is_told_the_reason": 0,
        "test_an_empty_inbox_says_what_makes_a_call_wait": 0,
        "test_many_are_decided_at_once_and_each_refusal_is_said_where_it_belongs": 0,
        "test_somebody_else_who_was_faster_is_named": 0,
        "test_what_was_decided_is_listed_with_who_did_it_newest_first": 0,
    },
    "browser/test_argument_checks.py": {
        "test_a_change_is_shown_line_by_line": 0,
        "test_a_schema_that_refers_to_itself_is_given_up_on": 0,
        "test_what_does_not_fit_is_named_by_its_field": 0,
    },
    "browser/test_example_pages.py": {
        "test_an_error_is_shown_and_the_chat_goes_on": 0,
        "test_stop_ends_a_run_that_waits_for_a_decision": 0,
        "test_the_api_is_killed_while_the_worker_goes_on": 1,
        "test_the_server_is_killed_and_started_again": 0,
        "test_what_is_said_in_one_tab_is_heard_in_the_other": 0,
    },
    "browser/test_first_words.py": {
        "test_a_run_that_goes_on_after_a_decision_says_what_was_asked": 0,
        "test_first_words_are_text_and_a_long_name_hides_no_column": 0,
        "test_runs_could_be_told_apart_by_their_ids_alone": 0,
        "test_runs_that_no_words_began_say_what_they_do": 0,
        "test_what_a_failed_run_was_asked_was_nowhere_on_its_page": 0,
    },
    "browser/test_folds.py": {
        "test_a_gap_and_an_error_are_shown_where_they_are": 0,
        "test_a_step_that_is_begun_again_makes_what_was_shown_void": 0,
        "test_a_text_that_is_cut_twice_is_cut_by_its_numbers": 0,
        "test_an_answer_that_goes_on_behind_all_that_was_shown_loses_nothing": 0,
        "test_calls_come_in_pieces_and_their_ids_may_come_twice": 0,
        "test_the_result_of_a_call_that_was_not_stored_comes_again_to_its_call": 0,
        "test_the_run_that_goes_on_after_an_approval_follows": 0,
        "test_the_waterfall_has_every_wait": 0,
        "test_the_waterfall_shows_a_lost_worker_and_a_person": 0,
    },
    "browser/test_keys.py": {
        "test_another_tab_does_not_have_the_key": 0,
    },
    "browser/test_lost_processes.py": {
        "test_the_server_is_killed_and_comes_back": 0,
    },
    "browser/test_operations.py": {
        "test_a_callback_that_failed_is_tried_again_at_a_press": 0,
        "test_a_key_without_the_scope_is_told_which_one_is_needed": 0,
        "test_the_last_hour_is_there_as_lines_and_as_a_table": 0,
    },
    "browser/test_run.py": {
        "test_a_failed_run_says_why": 0,
        "test_a_hidden_tab_kept_the_connection_of_its_stream": 0,
        "test_a_message_is_injected": 0,
        "test_a_question_to_a_model_is_shown_as_one": 0,
        "test_a_run_is_replayed_from_a_number": 0,
        "test_a_run_that_goes_on_was_not_found_behind_a_hundred_of_another_conversation": 0,
        "test_a_run_that_is_not_there_says_so": 0,
        "test_calls_reasoning_and_the_waterfall": 0,
        "test_escape_leaves_the_run_alone": 0,
        "test_reasoning_is_folded_under_its_name": 0,
        "test_ten_thousand_events_are_a_few_rows": 0,
    },
    "browser/test_run_at_work.py": {
        "test_a_run_that_waits_for_a_person_was_said_to_wait_until_nothing": 0,
        "test_the_first_token_of_a_run_at_work_was_a_dash_until_its_step_had_ended": 0,
    },
    "browser/test_runs.py": {
        "test_a_new_project_says_what_to_do_first": 0,
        "test_any_id_leads_to_what_it_names": 0,
        "test_filters_are_kept_in_the_address": 0,
        "test_lists_showed_ids_where_people_know_names": 0,
        "test_the_documentation_of_paths_shows_without_the_internet": 0,
        "test_the_keyboard_alone_leads_from_the_top_into_a_run": 0,
        "test_times_of_creation_are_asked_for": 0,
    },
    "browser/test_steering.py": {
        "test_a_message_that_is_on_its_way_cannot_be_injected_again": 0,
        "test_a_run_that_is_cancelled_while_it_waits_for_a_person_comes_to_rest": 0,
        "test_the_receipt_of_a_cancel_says_when_the_run_has_stopped": 0,
    },
    "browser/test_talk.py": {
        "test_a_call_that_waits_is_decided_where_the_talk_is": 0,
        "test_a_double_click_showed_older_messages_twice": 0,
        "test_a_message_that_is_refused_can_be_sent_again": 0,
        "test_a_message_whose_answer_was_lost_is_sent_again_and_answered_once": 0,
        "test_a_run_that_somebody_else_began_is_shown_while_it_answers": 0,
        "test_older_messages_are_a_button_away": 0,
        "test_older_messages_that_could_not_be_fetched_failed_without_a_word": 0,
        "test_what_is_told_to_an_answer_in_progress_is_shown_once": 0,
        "test_what_stops_an_answer_in_progress_is_shown_once": 0,
    },
    "browser/test_talk_layout.py": {
        "test_a_reader_who_had_scrolled_up_a_little_was_taken_to_the_end": 0,
        "test_a_window_too_low_for_a_talk_is_scrolled": 0,
        "test_an_answer_that_grows_is_followed": 1,
        "test_the_last_line_of_a_talk_was_cut_off": 0,
    },
    "browser/test_talk_runs.py": {
        "test_a_hidden_tab_kept_the_connection_of_its_stream": 0,
        "test_a_queued_run_is_streamed_when_its_turn_has_come": 0,
        "test_a_run_that_waits_for_a_person_was_hidden_by_those_queued_behind_it": 0,
        "test_an_answer_that_had_failed_sank_below_those_that_came_later": 0,
        "test_answers_of_the_past_were_followed_for_as_long_as_the_page_was_open": 0,
        "test_runs_of_a_conversation_hid_what_the_agents_own_history_was_answering": 0,
    },
    "browser/test_waiting_runs.py": {
        "test_an_input_that_cannot_be_fetched_is_said_and_asked_for_again": 0,
    },
    "contract/test_agent_files.py": {
        "test_a_form_of_separators_held_the_api": 8,
        "test_a_refused_file_is_told_where_its_fault_is": 10,
    },
    "contract/test_archival_store.py": {
        "test_no_query_is_an_error": 10,
        "test_words_are_found_in_any_language_and_case": 9,
    },
    "contract/test_chat_requests.py": {
        "test_what_cannot_be_done_is_a_400_that_names_the_field": 8,
    },
    "contract/test_checkpoint_store.py": {
        "test_a_run_that_has_ended_takes_no_writes": 9,
        "test_an_old_owner_writes_nothing": 11,
    },
    "contract/test_code_bodies.py": {
        "test_a_body_has_no_secret_of_the_deployment": 1,
        "test_a_body_that_does_not_listen_is_killed": 2,
        "test_a_body_that_listens_cleans_up_when_it_is_cancelled": 1,
        "test_a_body_whose_process_ends_again_and_again_fails": 2,
        "test_a_crash_is_survived": 1,
        "test_a_denial_is_told_to_the_code": 1,
        "test_a_host_that_was_lost_is_started_again": 1,
        "test_a_person_may_edit_what_is_approved": 1,
        "test_a_probe_says_what_became_of_a_lost_call": 2,
        "test_a_sleep_is_counted_from_its_first_attempt": 1,
        "test_a_state_belongs_to_the_thread": 1,
        "test_a_tool_that_may_start_twice_has_one_key": 1,
        "test_a_turn_may_begin_anew_with_other_code": 1,
        "test_an_exception_is_named_without_paths": 1,
        "test_code_that_asks_for_another_step_fails_by_its_name": 1,
        "test_it_does_its_work_and_ends": 2,
        "test_it_is_cancelled_anywhere": 4,
        "test_it_is_handed_over_anywhere": 4,
        "test_its_process_is_killed_anywhere": 9,
        "test_its_worker_is_lost_anywhere": 9,
        "test_the_code_is_told_of_a_call_whose_outcome_is_unknown": 1,
        "test_tools_side_by_side_each_have_their_result": 2,
        "test_what_a_body_has_started_ends_with_it": 1,
        "test_what_is_in_hand_ends_when_its_worker_drains": 1,
        "test_what_is_injected_is_taken_once": 1,
    },
    "contract/test_context_reads.py": {
        "test_messages_that_had_left_a_context_were_walked_over_for_each_step": 2,
    },
    "contract/test_dead_writer.py": {
        "test_a_dead_writer_and_a_replica_that_lagged_gave_numbers_twice": 8,
    },
    "contract/test_error_codes.py": {
        "test_a_refusal_had_no_code": 12,
    },
    "contract/test_files_per_run.py": {
        "test_runs_on_embedded_parts_pass_through_no_more_files_than_their_limits": 0,
        "test_runs_on_the_services_pass_through_no_more_files_than_their_limits": 0,
    },
    "contract/test_health_port.py": {
        "test_a_worker_says_what_it_lacks_and_one_that_stands_still_says_nothing": 1,
    },
    "contract/test_hostile_streams.py": {
        "test_any_stream": 2,
    },
    "contract/test_hostile_texts.py": {
        "test_another_encoding_is_never_a_500": 10,
        "test_any_agent_file": 1,
        "test_bad_text_in_a_form_is_never_a_500": 6,
        "test_bad_text_in_an_address_or_a_header_is_never_a_500": 2,
        "test_bad_text_in_every_field_of_a_body_is_never_a_500": 2,
    },
    "contract/test_input_limits.py": {
        "test_a_message_could_be_as_long_as_a_body": 6,
    },
    "contract/test_keys_command.py": {
        "test_a_running_api_follows_within_five_seconds": 1,
    },
    "contract/test_lease_fence_log_protocol.py": {
        "test_every_interleaving_keeps_one_owner_and_one_log": 1,
    },
    "contract/test_long_pages.py": {
        "test_a_page_of_messages_had_as_many_megabytes_as_there_were": 2,
    },
    "contract/test_lost_answers.py": {
        "test_a_write_whose_answer_was_lost_is_recognised_when_repeated": 20,
    },
    "contract/test_migration_locks.py": {
        "test_a_migration_kept_the_locks_of_one_table_while_it_waited_for_another": 2,
    },
    "contract/test_models_ended.py": {
        "test_a_whole_answer_was_lost_with_its_connection": 8,
        "test_so_were_whole_calls": 8,
    },
    "contract/test_models_failures.py": {
        "test_a_model_that_falls_silent_is_given_up": 2,
        "test_an_answer_may_take_longer_than_either_limit": 1,
    },
    "contract/test_models_odd_fields.py": {
        "test_a_field_of_another_kind_lost_the_whole_answer": 44,
    },
    "contract/test_models_pauses.py": {
        "test_a_pause_was_cut_short_where_the_header_was_not_understood": 24,
    },
    "contract/test_models_servers.py": {
        "test_a_server_pinged_for_ever_behind_its_answer": 1,
        "test_an_error_behind_the_reason_took_a_whole_answer": 8,
        "test_half_a_character_became_two_marks_or_an_error": 48,
    },
    "contract/test_openapi_document.py": {
        "test_refusals_had_bodies_of_another_shape_than_the_document_said": 2,
    },
    "contract/test_operations.py": {
        "test_a_callback_that_waits_is_listed_and_tried_at_once": 1,
    },
    "contract/test_operator_mistakes.py": {
        "test_postgres_that_refuses_is_a_mistake": 1,
    },
    "contract/test_package_environments.py": {
        "test_a_package_of_very_many_empty_files_was_worked_at_until_its_time_was_over": 1,
        "test_what_cannot_be_had_is_refused_with_the_reason": 2,
    },
    "contract/test_prune_command.py": {
        "test_it_may_be_told_to_end_and_started_again": 1,
    },
    "contract/test_publisher.py": {
        "test_what_was_stored_with_its_answer_lost_is_not_stored_again": 8,
    },
    "contract/test_query_plans.py": {
        "test_the_few_steps_of_which_somebody_thought_something_were_looked_for_among_all": 2,
    },
    "contract/test_refused_values.py": {
        "test_a_field_of_an_agent_that_cannot_be_kept": 9,
        "test_a_last_event_id_that_is_no_number_of_a_frame": 6,
    },
    "contract/test_retention.py": {
        "test_a_crash_in_the_middle_leaves_each_run_whole_or_pruned": 4,
        "test_a_run_of_which_something_is_still_to_happen_is_never_touched": 8,
    },
    "contract/test_run_reader.py": {
        "test_a_hole_in_the_middle_of_a_page_is_filled_from_sql": 8,
        "test_an_end_that_was_published_while_nobody_heard_it_is_found": 2,
        "test_the_stream_of_a_run_that_is_deleted_ends": 2,
    },
    "contract/test_security_headers.py": {
        "test_a_server_with_keys_shows_its_paths_when_told_to": 2,
    },
    "contract/test_settlement.py": {
        "test_an_event_that_comes_behind_the_end_is_refused_and_changes_no_number": 8,
    },
    "contract/test_store_conformance.py": {
        "test_every_page_of_every_sort": 12,
    },
    "e2e/test_documentation.py": {
        "test_curl_examples_do_what_they_say": 4,
        "test_python_examples_do_what_they_say": 3,
    },
    "e2e/test_imported_packages.py": {
        "test_a_missing_setting_was_said_after_all_imports": 3,
        "test_a_wrong_setting_was_said_after_all_imports": 3,
        "test_an_operators_wrong_setting_was_said_after_all_imports": 5,
    },
    "e2e/test_into_your_product.py": {
        "test_a_new_users_first_requests_at_once_were_of_two_agents": 0,
        "test_what_is_not_a_users_own_is_not_shown": 0,
    },
    "faults/test_clock_jumps.py": {
        "test_a_cancel_of_a_dead_workers_run_is_settled_across_a_jump": 1,
        "test_a_run_stays_with_its_worker_whose_clock_jumps": 1,
        "test_a_run_that_redis_forgot_with_its_dead_worker_is_found_by_a_clock_that_jumped": 1,
        "test_a_worker_whose_clock_jumps_leaves_the_runs_of_others_alone": 1,
        "test_runs_that_are_submitted_around_a_jump_are_each_executed_once": 1,
    },
    "faults/test_crash_between_turns.py": {
        "test_a_worker_that_dies_there": 4,
    },
    "faults/test_crash_in_asked_compaction.py": {
        "test_a_worker_that_dies_over_the_summary_leaves_one": 1,
    },
    "faults/test_crash_in_code_agents.py": {
        "test_a_worker_that_dies_there": 3,
    },
    "faults/test_crash_in_run_trees.py": {
        "test_a_lost_answer_to_what_is_written_of_a_call_of_an_agent": 1,
        "test_an_agent_was_asked_twice_when_the_worker_of_its_caller_died": 3,
    },
    "faults/test_crash_in_tool_run.py": {
        "test_a_tool_starts_once_though_its_worker_dies": 4,
        "test_an_edit_is_made_once_though_its_worker_dies": 4,
    },
    "faults/test_database_away.py": {
        "test_a_run_ends_once_when_the_database_was_away_for_longer_than_its_worker_waits": 1,
        "test_a_worker_retries_the_writes_of_a_step_until_the_database_is_back": 2,
        "test_requests_are_refused_in_time_while_the_database_is_away": 1,
    },
    "faults/test_first_token.py": {
        "test_the_first_token_stays_when_redis_was_away_for_longer_than_a_lease": 0,
        "test_the_first_token_stays_when_two_workers_in_a_row_are_lost": 0,
    },
    "faults/test_memory_of_many_turns.py": {
        "test_each_edit_of_many_turns_is_made_once_while_workers_die": 0,
    },
    "faults/test_redis_away.py": {
        "test_a_run_that_ends_while_redis_is_away_ends_for_its_readers_too": 1,
        "test_a_stream_goes_on_after_redis_took_no_writes_for_longer_than_a_lease": 0,
        "test_a_stream_goes_on_after_redis_was_away_for_a_while": 1,
        "test_a_stream_goes_on_after_redis_was_away_for_longer_than_a_lease": 0,
        "test_a_stream_goes_on_at_the_redis_that_took_the_place_of_the_lost_one": 1,
        "test_what_is_submitted_while_redis_is_away_is_stored_and_executed_when_it_is_back": 1,
    },
    "faults/test_redis_full.py": {
        "test_the_log_of_a_run_that_ended_while_redis_was_full_stayed_for_a_day": 1,
    },
    "faults/test_redis_lost.py": {
        "test_a_long_stream_is_the_same_after_redis_was_emptied": 0,
        "test_a_run_goes_on_after_redis_stood_still": 0,
    },
    "faults/test_traces_of_workers.py": {
        "test_a_run_is_one_trace_over_all_its_workers": 0,
    },
    "faults/test_two_of_each.py": {
        "test_a_caller_that_waits_for_a_whole_answer_is_told_where_it_will_be": 0,
        "test_runs_that_wait_for_a_slow_model_do_not_keep_new_runs_from_starting": 0,
    },
    "security/test_ends.py": {
        "test_a_worker_that_is_killed_leaves_no_process_of_a_hostile_tool": 1,
        "test_hostile_calls_that_are_cancelled_are_dead_at_once": 1,
    },
    "security/test_event_loop_holds.py": {
        "test_a_history_of_many_megabytes_held_the_loop_while_it_was_prepared_for_the_model": 0,
        "test_a_page_of_much_was_made_json_in_one_go": 0,
        "test_a_sample_of_the_largest_requests_holds_the_loop_of_nobody": 0,
        "test_no_answer_of_a_model_and_no_result_of_a_tool_holds_the_loop_of_the_worker": 0,
    },
    "security/test_hostile_javascript.py": {
        "test_javascript_runs_in_the_jail": 2,
        "test_walls_hold_around_javascript": 1,
    },
    "security/test_hostile_tools.py": {
        "test_walls_hold": 6,
        "test_without_walls_the_attacks_are_found_out": 0,
    },
    "story/test_approvals.py": {
        "test_a_decision_that_is_not_understood_decides_nothing": 5,
    },
    "story/test_browsers.py": {
        "test_a_made_up_token_is_refused": 3,
    },
    "story/test_callbacks.py": {
        "test_what_is_no_url_is_refused_by_name": 4,
    },
    "story/test_cancel_table.py": {
        "test_cancel": 9,
    },
    "story/test_changed_tools.py": {
        "test_an_approved_call_ran_another_source_than_the_one_that_was_shown": 3,
    },
    "story/test_cut_answers.py": {
        "test_calls_of_an_answer_that_was_cut_off_were_run": 4,
    },
    "story/test_decided_runs.py": {
        "test_a_decided_run_looked_like_one_that_waits": 3,
        "test_who_is_called_back_was_not_told_of_the_run_that_goes_on": 3,
    },
    "story/test_filled_in_arguments.py": {
        "test_what_a_rule_filled_in_was_not_shown_and_went_over_an_edit": 2,
    },
    "story/test_gates_at_work.py": {
        "test_a_call_that_waited_for_a_tool_of_the_client_ran_though_its_tool_was_stopped": 2,
        "test_a_later_call_of_the_same_answer_ran_though_its_tool_was_stopped": 2,
        "test_a_tool_was_called_that_was_stopped_while_the_model_spoke": 2,
        "test_the_next_answer_called_a_tool_that_was_stopped_while_the_run_sat_in_another": 2,
    },
    "story/test_images_in_results.py": {
        "test_images_in_a_tools_result_were_dropped": 4,
    },
    "story/test_long_searches.py": {
        "test_a_models_search_with_many_words_stopped_its_worker": 1,
        "test_the_statement_of_a_search_grew_with_its_words": 2,
    },
    "story/test_named_decisions.py": {
        "test_a_call_that_was_decided_twice_in_one_request_went_by_the_last": 3,
        "test_a_decision_in_the_older_form_that_came_once_more_was_refused": 2,
        "test_the_older_form_decided_what_it_did_not_name": 4,
        "test_what_a_message_says_beside_its_verdict_was_passed_over": 5,
    },
    "story/test_refused_for_length.py": {
        "test_a_request_that_is_much_longer_is_sent_shorter_whatever_the_words": 4,
        "test_a_summary_that_the_model_refuses_is_an_excerpt": 3,
    },
    "story/test_sending_again.py": {
        "test_a_provider_that_is_down_costs_one_run": 3,
    },
    "story/test_times.py": {
        "test_every_time_of_a_list_has_its_zone": 6,
    },
    "story/test_ways_out.py": {
        "test_what_an_error_named_to_resolve_it_could_not_be_sent_so": 3,
    },
    "story/test_wire.py": {
        "test_frames_were_left_out_where_cursors_contradict_each_other": 10,
    },
    "unit/test_deploy_upgrade.py": {
        "test_every_worker_of_systemd_has_a_port_of_its_own": 20,
    },
    "unit/test_javascript_calls.py": {
        "test_a_call_that_fails_says_why": 5,
        "test_a_cancelled_call_may_clean_up_if_it_listens": 1,
        "test_a_cancelled_call_that_does_not_listen_ends_without_its_grace": 1,
        "test_a_cancelled_caller_leaves_no_process": 1,
        "test_results_become_text": 5,
    },
    "unit/test_logs.py": {
        "test_logs_had_tracebacks_with_what_users_said": 2,
    },
    "unit/test_tiers.py": {
        "test_a_suite_that_was_stopped_had_named_no_failure": 1,
    },
    "unit/test_tool_arguments.py": {
        "test_a_schema_that_multiplies_with_its_arguments_is_given_up": 4,
    },
    "unit/test_tool_sandbox.py": {
        "test_a_failing_tool_is_an_outcome": 7,
        "test_results_become_text": 7,
    },
    "unit/test_tool_walls.py": {
        "test_a_call_at_its_processor_limit_was_said_to_be_killed_for_no_reason": 1,
    },
    "unit/test_tracer.py": {
        "test_the_sdk_is_not_loaded_by_a_process_that_exports_nothing": 0,
    },
    "unit/test_typescript.py": {
        "test_a_source_of_any_depth_is_read_or_refused_without_a_crash": 4,
    },
    "unit/test_zygotes.py": {
        "test_a_timeout_lets_the_tool_clean_up_and_keeps_its_output": 1,
        "test_a_tool_that_ignores_a_cancel_is_killed_after_the_grace": 1,
    },
}
"""How many cases `make test` runs of each test, by file below `tests` and by name."""


def mark_further_cases(items: Iterable[pytest.Function]) -> None:
    """Marks the other cases `exhaustive`."""
    cases: dict[tuple[str, str], list[pytest.Function]] = {}
    for item in items:
        file, name = f"{item.path.parent.name}/{item.path.name}", item.originalname
        if name in IN_MAKE_TEST.get(file, {}) and item.get_closest_marker("exhaustive") is None:
            cases.setdefault((file, name), []).append(item)
    for (file, name), found in cases.items():
        kept = spread(len(found), IN_MAKE_TEST[file][name])
        for number, item in enumerate(found):
            if number not in kept:
                item.add_marker(pytest.mark.exhaustive)


def spread(count: int, wanted: int) -> set[int]:
    """The numbers of `wanted` among `count` cases, or of all if there are no more. Where it leaves out half of them,
    even and odd ones in turn: of two databases or two tiers of walls both are among them."""
    if 2 * wanted > count:
        return set(range(min(wanted, count)))
    places = [number * count // wanted for number in range(wanted)]
    return {place + (place + number) % 2 for number, place in enumerate(places)}
